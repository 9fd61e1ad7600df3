"""How much faster is the repaired script really? Both take turns, a block of steps at a time.

What slows the machine down for a while slows both sides of a pair of blocks; a script that waits
for its turn uses no processor.
"""

from __future__ import annotations

import contextlib
import random
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from diagnose.measure.jobs import ROOT
from diagnose.measure.process import Died, Hung, Process

# Imports, data, the first steps: whatever a script does before it is steady.
WARMUP_STEPS = 5
# For torchrun, which ends its own ranks.
POLITE_SECONDS = 10.0


class CouldNotTime(Exception):
    """A script ended, hung or could not be started; the message is one sentence."""


@contextlib.contextmanager
def start_python(
    words: Sequence[str], ranks: int, variables: Mapping[str, str] | None = None
) -> Iterator[Process]:
    """Python with these words, once or once for every rank, from the root of the repository."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    process = Process([*(launcher if ranks > 1 else ()), *words], variables, cwd=ROOT)
    try:
        yield process
    finally:
        process.end(POLITE_SECONDS)


def time_twins(
    scripts: Sequence[Path],
    *,
    ranks: int,
    blocks: int,
    block_steps: int,
    settle_steps: int,
    step_seconds: float,
) -> list[list[float]]:
    """Mean seconds per step in each block, for each script; the order within a block is random.

    `step_seconds` is the longest that one step may take before a script counts as hung.
    """
    order = random.Random(0)
    means: list[list[float]] = [[] for _ in scripts]
    module = ("-m", "diagnose.measure.twins.turns")
    with contextlib.ExitStack() as stack:
        twins = [
            stack.enter_context(start_python([*module, str(script)], ranks)) for script in scripts
        ]
        for twin in twins:
            _run(twin, WARMUP_STEPS, step_seconds)
        for _ in range(blocks):
            for side in order.sample(range(len(twins)), len(twins)):
                seconds = _run(twins[side], settle_steps + block_steps, step_seconds)
                means[side].append(statistics.fmean(seconds[settle_steps:]))
    return means


def _run(twin: Process, steps: int, step_seconds: float) -> list[float]:
    """Seconds of each of the next steps."""
    limit = steps * step_seconds
    try:
        _, content = twin.ask("steps", steps, limit)
    except Hung:
        raise CouldNotTime(f"{steps} steps took over {limit:g} s") from None
    except Died as error:
        raise CouldNotTime(f"it {error} before its steps were done") from None
    seconds: list[float] = content
    return seconds
