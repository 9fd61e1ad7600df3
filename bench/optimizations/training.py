"""Which changes of the training loop are worth a try? Logging, the optimiser, memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor

from bench.dgca.loss import compute_loss
from bench.dgca.masking import mask_on_device
from bench.dgca.model import OPTIMISED
from bench.optimizations.dgca_lab import (
    LEARNING_RATE,
    build_exact_model,
    build_model,
    model_outcome,
    real_batch,
    training_trial,
)
from bench.optimizations.lab import opened
from diagnose.measure.machine.allocator import keep_freed_memory, return_large_blocks
from diagnose.workload import Lab, Optimization, Side, Size, Trial

# The loop's own cost does not depend on the model, and shows best on a small one.
SMALL_MODEL = {"layers": 2, "hidden": 64, "heads": 2, "ffn": 256}
SMALL_BATCH = 4
LOGGED_STEPS = 8


def small(lab: Lab) -> Lab:
    shape = {**lab.size.shape, **SMALL_MODEL}
    batch_size = min(SMALL_BATCH, lab.size.batch_size)
    return replace(lab, size=Size(batch_size, lab.size.sequence_length, shape))


class Loop:
    """A training loop on one resident real batch."""

    def __init__(self, lab: Lab) -> None:
        self.model = build_exact_model(lab, OPTIMISED)
        self._batch = real_batch(lab)
        self._optimizer = torch.optim.AdamW(self.model.parameters(), lr=LEARNING_RATE)

    def step(self) -> list[Tensor]:
        terms = compute_loss(self.model(self._batch), self._batch, self.model.config)
        torch.autograd.backward(terms.total)
        self._optimizer.step()
        self._optimizer.zero_grad()
        return [each.detach() for each in terms if isinstance(each, Tensor)]


# --- 6: reading the loss ---


def _read_every_step(loop: Loop) -> list[float]:
    seen = []
    for _ in range(LOGGED_STEPS):
        seen += [each.item() for each in loop.step()]
    return seen


def _read_at_the_end(loop: Loop) -> list[float]:
    kept: list[Tensor] = []
    for _ in range(LOGGED_STEPS):
        kept += loop.step()
    seen: list[float] = torch.stack(kept).tolist()
    return seen


def _logging_side(text: str, run: Callable[[Loop], list[float]]) -> Side:
    def outcome(lab: Lab) -> dict[str, Tensor]:
        return {"losses": torch.tensor(run(Loop(small(lab))))}

    def trial(lab: Lab) -> Trial:
        loop = Loop(small(lab))
        return Trial(lambda: run(loop), SMALL_BATCH * LOGGED_STEPS)

    return Side(text, outcome, {f"{LOGGED_STEPS} training steps": opened(trial)})


LOGGING_SYNC = Optimization(
    key="logging_sync",
    title="Read the losses once, not every step",
    before=_logging_side("item() of every loss term, every step", _read_every_step),
    after=_logging_side("one read at the end", _read_at_the_end),
)


# --- 8: the optimiser ---


def _optimizer_side(text: str, *, fused: bool) -> Side:
    def make(lab: Lab) -> tuple[list[Tensor], torch.optim.Optimizer]:
        parameters = list(build_model(lab, OPTIMISED).parameters())
        torch.manual_seed(lab.seed)
        for each in parameters:
            each.grad = torch.randn_like(each)
        # Neither fused nor foreach is the plain loop over tensors.
        optimizer = torch.optim.AdamW(parameters, lr=LEARNING_RATE, fused=fused, foreach=False)
        return list(parameters), optimizer

    def outcome(lab: Lab) -> dict[str, Tensor]:
        parameters, optimizer = make(lab)
        optimizer.step()
        return {"parameters": torch.cat([each.detach().reshape(-1) for each in parameters])}

    def trial(lab: Lab) -> Trial:
        _, optimizer = make(lab)
        return Trial(optimizer.step, lab.size.batch_size)

    return Side(text, outcome, {"optimiser step": opened(trial)})


FUSED_OPTIMIZER = Optimization(
    key="fused_optimizer",
    title="Fuse the optimiser",
    before=_optimizer_side("AdamW, one tensor after the other", fused=False),
    after=_optimizer_side("AdamW(fused=True)", fused=True),
    tolerance=1e-5,
)


# --- freed memory ---


def _memory_side(text: str, arrange: Callable[[], bool]) -> Side:
    @contextmanager
    def trial(lab: Lab) -> Iterator[Trial]:
        with training_trial(OPTIMISED, mask_on_device)(lab) as made:
            # Afterwards as every other measurement has it.
            yield replace(made, before_slot=arrange, after_slot=keep_freed_memory)

    return Side(text, model_outcome(OPTIMISED), {"training step": trial})


def _memory_obstacle(lab: Lab) -> str:
    if lab.device.type != "cpu":
        return f"the allocator of {lab.device.type} keeps freed memory by itself"
    return "" if keep_freed_memory() else "this C library cannot be told to keep freed memory"


KEEP_MEMORY = Optimization(
    key="keep_memory",
    title="Keep freed memory",
    before=_memory_side("blocks above 32 MiB go back to the system", return_large_blocks),
    after=_memory_side("freed memory is kept for the next tensor", keep_freed_memory),
    obstacle=_memory_obstacle,
)
