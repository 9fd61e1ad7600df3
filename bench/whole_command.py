"""Is the recommended training command faster than the original one, each run as a whole?

    python -m bench.whole_command --rate 4gbit --blocks 8

Both train the same rows on two hosts (network namespaces of this machine), over a link of the
rate that the field report measured: it printed 1 GB/s with every byte counted twice, so that
0.5 GB/s, or 4 Gbit/s, go each way. Evaluation and saving happen at the report's steps divided by
--scale. A block is the original, the original again, and the recommended command, in random order;
each is kept as soon as it is done. Startup does not count: seconds are those from the first
optimiser step to the last word of the run.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench.kept import REPORTS, ROOT, Entry, Kept, Page, Settings, add_allow_dirty, table
from bench.two_hosts import bytes_per_second, find_obstacle, two_hosts
from diagnose.commands.shared.arguments import count
from diagnose.records.sequential import Block, ratio_interval

FILE = REPORTS / "whole_command.json"
CONFIDENCE = 0.95
LIMIT_SECONDS = 1200.0
SIDES = ("original", "control", "recommended")
ENVIRONMENT = {"NCCL_SHM_DISABLE": "1", "NCCL_IB_DISABLE": "1", "OMP_NUM_THREADS": "1"}
# Options of the report's commands -> why ours are without them, or with another value.
CHANGED = {
    "--fp16": "left out: on the CPU it is bfloat16, whose speed depends on the processor far more "
    "than on these options; both sides compute in float32",
    "--do_test": "left out: one test at the end is the same in both commands, and would weigh "
    "far more among so few steps",
    "--preprocessed_test": "left out with --do_test",
    "--train_batch_size": "{batch_size} instead of 128, so that a step fits this machine",
    "--eval_steps": "divided by {scale}, as is --save_steps, because a run has {steps} steps",
    "--nproc_per_node": "1 on each of two hosts instead of 2 on one, so that the link has a rate",
    "--master_port": "left out: the hosts find each other by --rdzv-endpoint",
}


def options_of(side: str, scale: int) -> dict[str, int]:
    """What the report had before and what it recommends, its steps divided by the scale.

    Its batch is divided by the accumulation steps, as in its script: the samples of a step are the
    same on both sides.
    """
    every = {"gradient_accumulation_steps": 1, "ddp_bucket_cap_mb": 25, "num_workers": 4}
    steps = {"eval_steps": 500, "save_steps": 500}
    if side == "recommended":
        every = {"gradient_accumulation_steps": 4, "ddp_bucket_cap_mb": 200, "num_workers": 2}
        steps = {"eval_steps": 2000, "save_steps": 1000}
    return every | {name: max(1, value // scale) for name, value in steps.items()}


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="whole_command", description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--rate", default="4gbit", help="of the link, such as 200mbit (default: %(default)s)")
    add("--blocks", type=count, default=8, metavar="N")
    add("--steps", type=count, default=40, metavar="N", help="of one run (default: %(default)s)")
    add("--scale", type=count, default=50, metavar="N", help="divides eval and save steps")
    add("--batch-size", type=count, default=16, metavar="N", help="of a rank (report: 128)")
    add("--size", default="ranks", help="of dgca (default: %(default)s)")
    add("--output", type=Path, default=FILE, metavar="FILE")
    add_allow_dirty(parser)
    options = parser.parse_args(words)
    try:
        bytes_per_second(options.rate)
    except ValueError as error:
        parser.error(str(error))
    # Namespaces and ranks outlive a process that is killed between them.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if obstacle := find_obstacle():
        sys.exit(f"whole_command: {obstacle}")
    names = ("rate", "steps", "scale", "batch_size", "size")
    settings = {name: getattr(options, name) for name in names}
    kept = Kept(options.output, settings, allow_dirty=options.allow_dirty)
    with tempfile.TemporaryDirectory() as folder:
        make_data(Path(folder), options.size)
        while len(kept.entries) < options.blocks:
            order = random.Random(len(kept.entries)).sample(SIDES, len(SIDES))
            block = {side: run(side, settings, Path(folder)) for side in order}
            kept.add({side: block[side] for side in SIDES})
            print(f"{len(kept.entries)} of {options.blocks}: {block}", flush=True)
    kept.publish(PAGE)
    print(summarize(kept.settings, kept.entries))
    return 0


def make_data(folder: Path, size: str) -> None:
    words = [sys.executable, "-m", "bench.dgca.preprocess", "--output", str(folder)]
    subprocess.run(
        [*words, "--size", size], cwd=ROOT, check=True, timeout=LIMIT_SECONDS, stdout=sys.stderr
    )


def command(side: str, settings: Settings, folder: Path, output: Path) -> list[str]:
    words = [str(ROOT / "bench" / "dgca" / "train.py"), "--do_train", "--do_eval"]
    words += ["--apply_prompt", "--mft", "--device", "cpu", "--log_steps", "1"]
    own = {
        "preprocessed_train": folder / "train.pt",
        "preprocessed_eval": folder / "dev.pt",
        "size": settings["size"],
        "train_batch_size": settings["batch_size"],
        "max_steps": settings["steps"],
        "output": output,
        **options_of(side, settings["scale"]),
    }
    return words + [word for name, value in own.items() for word in (f"--{name}", str(value))]


def run(side: str, settings: Settings, folder: Path) -> float:
    """Seconds per optimiser step, evaluation and checkpoints included."""
    with tempfile.TemporaryDirectory() as output, two_hosts(settings["rate"]) as link:
        words = command(side, settings, folder, Path(output))
        # One pipe for both, read to its end as the lines come: their moments are what counts.
        started = link.start(words, {**os.environ, **ENVIRONMENT}, stderr=subprocess.STDOUT)
        try:
            moments = _listen(started[0])
            codes = [each.wait(timeout=60) for each in started]
        finally:
            for each in started:
                each.kill()
    if any(codes) or len(moments) < settings["steps"]:
        sys.exit(f"whole_command: the {side} command ended with {codes}: {' '.join(words)}")
    return (moments[-1] - moments[0]) / (int(settings["steps"]) - 1)


def _listen(process: subprocess.Popen[str]) -> list[float]:
    """When the first step was told, and when each line after it was."""
    moments: list[float] = []
    assert process.stdout is not None
    for line in process.stdout:
        if moments or line.startswith("step 1 of "):
            moments.append(time.monotonic())
    return moments


def summarize(settings: Settings, kept: Sequence[Entry]) -> str:
    """Time of the original over that of the recommended command, and whether that is proven."""
    blocks = [Block(each["original"], each["control"], each["recommended"]) for each in kept]
    found = ratio_interval(blocks, CONFIDENCE)
    slower = [each["original"] for each in kept]
    ends = "no interval" if found.low is None else f"[{found.low:.3f}, {found.high:.3f}]"
    return (
        f"The recommended command is {found.center:.3f} {ends} times as fast as the original one "
        f"({min(slower):.2f} to {max(slower):.2f} s per step) over {settings['rate']}, size "
        f"{settings['size']}, batch {settings['batch_size']} per rank, steps of evaluation and "
        f"saving divided by {settings['scale']}: {judge(found.low, found.high)}"
    )


def answer(settings: Settings, entries: Sequence[Entry]) -> str:
    """The verdict, and in what its command is not that of the report."""
    changed = [(f"`{name}`", why.format(**settings)) for name, why in CHANGED.items()]
    rows = "\n".join(table(("<option of the report", "<here"), changed))
    where = (
        "On the CPU, over gloo, with one thread for each rank: what GPUs gain is not decided here."
    )
    return f"{summarize(settings, entries)}. {where}\n\n{rows}"


def judge(low: float | None, high: float | None) -> str:
    if low is None or high is None or low <= 1 <= high:
        return "not decided"
    return "faster here" if low > 1 else "slower here"


PAGE = Page(
    "Is the recommended training command faster than the original one?",
    "python -m bench.whole_command",
    answer,
)

if __name__ == "__main__":
    sys.exit(main())
