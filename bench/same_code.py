"""How often does an experiment see a difference where there is none? The same code on both sides.

    python -m bench.same_code --repetitions 60 --pause 20

Every repetition is a whole experiment of `optimize`, from building both sides to its interval; the
pauses spread them over one long run. Each is kept as soon as it is done, so that the same command
goes on where an earlier one was ended. The share of the 95 % intervals that exclude 1 is published
beside the file with an interval of its own: at most 5 % of them should.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.kept import ROOT, Kept
from diagnose.commands.shared.arguments import count, count_or_none
from diagnose.records.sequential import Block, ratio_interval

CONFIDENCE = 0.95
FILE = ROOT / "reports" / "same_code.json"


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="same_code", description=__doc__.splitlines()[0])
    parser.add_argument("--repetitions", type=count, default=60, metavar="N")
    parser.add_argument("--pause", type=count_or_none, default=20, metavar="SECONDS")
    parser.add_argument("--size", default="small", help="of dgca (default: %(default)s)")
    parser.add_argument("--effort", choices=("quick", "smoke"), default="quick")
    parser.add_argument("--output", type=Path, default=FILE, metavar="FILE")
    options = parser.parse_args(words)
    settings = {"size": options.size, "effort": options.effort}
    kept = Kept(options.output, settings)
    run = repeat(options.size, options.effort)
    while len(kept.entries) < options.repetitions:
        if kept.entries:
            time.sleep(options.pause)
        blocks = [list(each) for each in run(len(kept.entries))]
        kept.add({"began": time.time(), "blocks": blocks})
        print(f"{len(kept.entries)} of {options.repetitions}: {_show(blocks)}", flush=True)
    summary = summarize([each["blocks"] for each in kept.entries])
    kept.publish(
        "How often does an experiment see a difference where there is none?",
        "python -m bench.same_code",
        f"{summary}.",
    )
    print(summary)
    return 0


def repeat(size: str, effort: str) -> Callable[[int], list[Block]]:
    """An experiment whose two sides are built by the same function."""
    import torch

    from bench.dgca.masking import mask_on_device
    from bench.dgca.model import OPTIMISED
    from bench.dgca.workload import SIZES
    from bench.optimizations.dgca_lab import training_trial
    from diagnose.measure.clock import EFFORTS
    from diagnose.measure.machine.device import Device
    from diagnose.measure.optimize.experiment import Bench, time_scope
    from diagnose.records.experiments import Comparison, find_blocks
    from diagnose.workload import Lab, Side

    def run(seed: int) -> list[Block]:
        side = Side("as it is", lambda lab: {}, {"step": training_trial(OPTIMISED, mask_on_device)})
        lab = Lab(torch.device("cpu"), SIZES[size], seed)
        blank = Comparison("same", "same", "after", "step", side.text, side.text, "done")
        made = time_scope(side, side, "step", Bench(lab, Device("cpu"), EFFORTS[effort]), blank)
        assert made.before is not None
        assert made.control is not None
        assert made.after is not None
        return find_blocks(made.before, made.control, made.after)

    return run


def summarize(repetitions: Sequence[Sequence[Sequence[float]]]) -> str:
    """The share of the intervals that exclude 1, with its 95 % interval."""
    wrong = sum(_excludes(each) for each in repetitions)
    low, high = share_interval(wrong, len(repetitions))
    return (
        f"{wrong} of {len(repetitions)} intervals ({CONFIDENCE:.0%}) exclude 1 although both sides "
        f"are the same code: {wrong / len(repetitions):.1%} [{low:.1%}, {high:.1%}], "
        f"{'more' if low > 1 - CONFIDENCE else 'no more'} than {1 - CONFIDENCE:.0%}"
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
        return math.fsum(
            math.comb(of, n) * share**n * (1 - share) ** (of - n) for n in range(count + 1)
        )

    lowest = 0.0 if found == 0 else solve(lambda share: 1 - at_most(found - 1, share) < tail)
    highest = 1.0 if found == of else solve(lambda share: at_most(found, share) > tail)
    return lowest, highest


def _excludes(blocks: Sequence[Sequence[float]]) -> bool:
    found = ratio_interval([Block(*each) for each in blocks], CONFIDENCE)
    return found.low is not None and found.high is not None and not found.low <= 1 <= found.high


def _show(blocks: Sequence[Sequence[float]]) -> str:
    found = ratio_interval([Block(*each) for each in blocks], CONFIDENCE)
    ends = "no interval" if found.low is None else f"[{found.low:.3f}, {found.high:.3f}]"
    return f"{found.center:.3f} {ends} after {len(blocks)} blocks"


if __name__ == "__main__":
    sys.exit(main())
