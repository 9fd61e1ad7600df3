"""How often does an experiment see a difference where there is none? The same code on both sides.

    python -m bench.same_code --repetitions 60 --pause 20
    python -m bench.same_code --workload textgen
    python -m bench.same_code --busy                      beside a process that keeps one core busy

Every repetition is a whole experiment of `optimize`, from building both sides to its interval; the
pauses spread them over one long run. Each is kept as soon as it is done, so that the same command
goes on where an earlier one was ended. The share of the 95 % intervals that exclude 1 is published
beside the file, for each workload and neighbor with an interval of its own: at most 5 % of them
should.
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.kept import REPORTS, Entry, Kept, Page, Settings, add_allow_dirty
from diagnose.commands.shared.arguments import count, count_or_none
from diagnose.records.sequential import Block, ratio_interval
from diagnose.records.stats import Interval
from diagnose.workload import Side, Workload

CONFIDENCE = 0.95
FILE = REPORTS / "same_code.json"
# Of what the experiment is made, by the workload.
SCOPES = {
    "dgca": "a training step of dgca",
    "textgen": "a generation pass of textgen with the settings of plan A",
}
# Sixty repetitions of the smallest size end in ten minutes.
TINY: Mapping[str, Any] = {"limit_seconds": 7.0, "warmup_limit_seconds": 2.0}
# Uses one core in bursts of uneven length, and ends with the process that started it.
NEIGHBOR = """
import os, random, sys, time
while os.getppid() == int(sys.argv[1]):
    until = time.monotonic() + random.uniform(0.1, 1.0)
    while time.monotonic() < until:
        pass
    time.sleep(random.uniform(0.1, 1.0))
"""


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="same_code", description=__doc__.splitlines()[0])
    parser.add_argument("--workload", choices=SCOPES, default="dgca")
    parser.add_argument("--busy", action="store_true", help="beside a process that takes one core")
    parser.add_argument("--repetitions", type=count, default=60, metavar="N")
    parser.add_argument("--pause", type=count_or_none, default=20, metavar="SECONDS")
    parser.add_argument("--size", default="small", help="of the workload (default: %(default)s)")
    parser.add_argument("--effort", choices=("quick", "smoke"), default="quick")
    parser.add_argument("--output", type=Path, default=FILE, metavar="FILE")
    add_allow_dirty(parser)
    options = parser.parse_args(words)
    settings = {"size": options.size, "effort": options.effort}
    kept = Kept(options.output, settings, allow_dirty=options.allow_dirty)
    chosen = (options.workload, options.busy)
    done = sum(_which(each) == chosen for each in kept.entries)
    with neighbor() if options.busy else nullcontext():
        run = repeat(options.workload, options.size, options.effort)
        for number in range(done, options.repetitions):
            if number > done:
                time.sleep(options.pause)
            began = time.time()
            blocks = [list(each) for each in run(number)]
            which = {"workload": options.workload, "busy": options.busy}
            kept.add({"began": began, **which, "blocks": blocks})
            print(f"{number + 1} of {options.repetitions}: {_show(blocks)}", flush=True)
    kept.publish(PAGE)
    print(answer(kept.settings, kept.entries))
    return 0


@contextmanager
def neighbor() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", NEIGHBOR, str(os.getpid())]) as busy:
        try:
            yield busy
        finally:
            busy.kill()


def repeat(workload: str, size: str, effort: str) -> Callable[[int], list[Block]]:
    """An experiment of `optimize` whose two sides are built by the same function."""
    import torch

    from bench.dgca.workload import WORKLOAD as DGCA
    from bench.textgen.workload import WORKLOAD as TEXTGEN
    from diagnose.measure.clock import EFFORTS
    from diagnose.measure.machine.device import Device
    from diagnose.measure.optimize.experiment import open_bench, time_scope
    from diagnose.measure.stages.plan import Context
    from diagnose.records.experiments import Comparison, find_blocks

    job = {"dgca": DGCA, "textgen": TEXTGEN}[workload]
    side = _dgca_side() if job is DGCA else _plan_a(TEXTGEN)
    (scope,) = side.trials

    def run(seed: int) -> list[Block]:
        torch.manual_seed(seed)
        context = Context(Device("cpu"), job, size, job.sizes[size], EFFORTS[effort], seed)
        bench = open_bench(context, 0.0, lambda name, slots, seconds: None)
        if size == "tiny":
            bench = replace(bench, effort=replace(bench.effort, **TINY))
        blank = Comparison("same", "same", "after", scope, side.text, side.text, "done")
        made = time_scope(side, side, scope, bench, blank)
        assert made.before is not None
        assert made.control is not None
        assert made.after is not None
        return find_blocks(made.before, made.control, made.after)

    return run


def _dgca_side() -> Side:
    from bench.dgca.masking import mask_on_device
    from bench.dgca.model import OPTIMISED
    from bench.optimizations.dgca_lab import training_trial

    return Side("as it is", lambda lab: {}, {"step": training_trial(OPTIMISED, mask_on_device)})


def _plan_a(job: Workload) -> Side:
    assert job.treatment is not None
    return next(each.after for each in job.treatment().optimizations if each.key == "plan_a")


def answer(settings: Settings, entries: Sequence[Entry]) -> str:
    """One sentence for each workload and neighbor, in the order in which they were measured."""
    lines = []
    for workload, busy in dict.fromkeys(map(_which, entries)):
        blocks = [each["blocks"] for each in entries if _which(each) == (workload, busy)]
        beside = "beside a process that uses one core in bursts" if busy else "nothing beside it"
        lines.append(f"- {SCOPES[workload]}, {beside}: {summarize(blocks)}.")
    return "\n".join(lines)


def _which(entry: Entry) -> tuple[str, bool]:
    return entry.get("workload", "dgca"), entry.get("busy", False)


def summarize(repetitions: Sequence[Sequence[Sequence[float]]]) -> str:
    """The share of the intervals that exclude 1, with its 95 % interval."""
    ends = [found.ends for found in map(_interval, repetitions) if found.ends is not None]
    without = len(repetitions) - len(ends)
    left_out = f"; {without} more had too few blocks for one" if without else ""
    if not ends:
        return f"no repetition has an interval{left_out}"
    wrong = sum(not low <= 1 <= high for low, high in ends)
    low, high = share_interval(wrong, len(ends))
    most = 1 - CONFIDENCE
    verdict = f"more than {most:.0%}" if low > most else f"compatible with {most:.0%} or less"
    return (
        f"{wrong} of {len(ends)} intervals ({CONFIDENCE:.0%}) exclude 1 although both sides "
        f"are the same code{left_out}: {wrong / len(ends):.1%} [{low:.1%}, {high:.1%}], {verdict}"
    )


def share_interval(found: int, of: int, confidence: float = 0.95) -> tuple[float, float]:
    """Clopper and Pearson's: exact for every number of repetitions."""
    tail = (1 - confidence) / 2

    def solve(is_low: Callable[[float], bool]) -> float:
        low, high = 0.0, 1.0
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if is_low(middle) else (low, middle)
        return (low + high) / 2

    def at_most(count: int, share: float) -> float:
        logs, whole = (math.log(share), math.log1p(-share)), math.lgamma(of + 1)
        return math.fsum(
            math.exp(
                whole
                - math.lgamma(n + 1)
                - math.lgamma(of - n + 1)
                + n * logs[0]
                + (of - n) * logs[1]
            )
            for n in range(count + 1)
        )

    lowest = 0.0 if found == 0 else solve(lambda share: 1 - at_most(found - 1, share) < tail)
    highest = 1.0 if found == of else solve(lambda share: at_most(found, share) > tail)
    return lowest, highest


def _interval(blocks: Sequence[Sequence[float]]) -> Interval:
    return ratio_interval([Block(*each) for each in blocks], CONFIDENCE)


def _show(blocks: Sequence[Sequence[float]]) -> str:
    found = _interval(blocks)
    ends = "no interval" if found.low is None else f"[{found.low:.3f}, {found.high:.3f}]"
    return f"{found.center:.3f} {ends} after {len(blocks)} blocks"


PAGE = Page(
    "How often does an experiment see a difference where there is none?",
    "python -m bench.same_code",
    answer,
)

if __name__ == "__main__":
    sys.exit(main())
