"""Does it pay to keep freed memory on the CPU, as accelerators do?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from bench.dgca.masking import mask_on_device
from bench.dgca.model import OPTIMISED
from bench.optimizations.dgca_lab import model_outcome, training_trial
from diagnose.measure.machine.allocator import keep_freed_memory, return_large_blocks
from diagnose.workload import Lab, Optimization, Side, Trial


def _side(text: str, arrange: Callable[[], bool]) -> Side:
    @contextmanager
    def trial(lab: Lab) -> Iterator[Trial]:
        with training_trial(OPTIMISED, mask_on_device)(lab) as made:
            # Afterwards as every other measurement has it.
            yield replace(made, before_slot=arrange, after_slot=keep_freed_memory)

    return Side(text, model_outcome(OPTIMISED), {"training step": trial})


def _obstacle(lab: Lab) -> str:
    if lab.device.type != "cpu":
        return f"the allocator of {lab.device.type} keeps freed memory by itself"
    return "" if keep_freed_memory() else "this C library cannot be told to keep freed memory"


KEEP_MEMORY = Optimization(
    key="keep_memory",
    title="Keep freed memory",
    before=_side("blocks above 32 MiB go back to the system", return_large_blocks),
    after=_side("freed memory is kept for the next tensor", keep_freed_memory),
    obstacle=_obstacle,
)
