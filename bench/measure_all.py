"""How are all committed reports measured anew? One after the other, from a clean commit.

    python -m bench.measure_all --list
    python -m bench.measure_all --prefix cpu
    python -m bench.measure_all --try            each part once, at its smallest, kept nowhere

Nothing else may run on the machine meanwhile. What has a record of this commit already is left out,
so that the same command goes on where an earlier one was ended; commit the reports at the end. Two
long commands go on in the same way and are started by themselves: bench.same_code (an hour for each
workload) and bench.whole_command (a quarter of one, as root).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from diagnose.measure.machine.describe import read_commit

ROOT = Path(__file__).resolve().parents[1]
# Little enough that every batch is refused for its memory before it takes too long.
CROPS_MEGABYTES = "640"
RANKS_MEGABYTES = "1100"
CROPS = ("1", "4", "8", "12", "13", "16", "24", "36")
FEW_CROPS = ("4", "12")


@dataclass(frozen=True)
class Part:
    """One command and the record that it leaves."""

    name: str  # of the report, behind the prefix; none of what bench.kept keeps
    record: str
    minutes: float  # about, on two cores
    words: tuple[str, ...]
    smallest: tuple[str, ...] = ("--smoke", "--size", "tiny")

    @property
    def key(self) -> str:
        return f"{self.name}/{self.record}" if self.name else self.record

    def path(self, reports: Path, prefix: str) -> Path:
        folder = reports / f"{prefix}-{self.name}" if self.name else reports
        return folder / f"{self.record}.json"


def _ranks(*words: str) -> tuple[str, ...]:
    return ("-m", "torch.distributed.run", "--nproc-per-node=2", *words)


SMOKE = ("--smoke",)
PARTS = (
    Part("bert", "run", 2, ("-m", "diagnose", "run", "--workload", "bert")),
    Part("dgca", "run", 2, ("-m", "diagnose", "run", "--workload", "dgca")),
    # `run` measures the link as well, with fewer sizes.
    Part("link", "bandwidth", 2, _ranks("diagnose/ddp_bandwidth.py"), SMOKE),
    Part(
        "link-settings",
        "bandwidth",
        2,
        _ranks("diagnose/ddp_bandwidth.py", "--env-sweep", "--max-bytes", "16M"),
        SMOKE,
    ),
    Part("dgca", "scaling", 7, _ranks("diagnose/ddp_scaling.py", "--workload", "dgca")),
    Part("dgca", "optimize", 10, ("-m", "diagnose", "optimize", "--workload", "dgca")),
    Part("timeseries", "optimize", 8, ("-m", "diagnose", "optimize", "--workload", "timeseries")),
    Part("textgen", "optimize", 9, ("-m", "diagnose", "optimize", "--workload", "textgen")),
    Part("textgen", "batch_size", 1, ("-m", "diagnose", "batch-size", "--workload", "textgen")),
    Part(
        "textgen-ranks",
        "batch_size",
        2,
        _ranks("-m", "diagnose", "batch-size", "--workload", "textgen"),
    ),
    Part("vqa", "optimize", 9, ("-m", "diagnose", "optimize", "--workload", "vqa")),
    Part("vqa", "batch_size", 1, ("-m", "diagnose", "batch-size", "--workload", "vqa")),
    Part(
        "molmo",
        "batch_size",
        10,
        (
            *("-m", "diagnose", "batch-size", "--workload", "molmo", "--max-crops-list", *CROPS),
            *("--memory-limit", CROPS_MEGABYTES),
        ),
    ),
    Part(
        "dgca-ranks",
        "batch_size",
        3,
        (
            *("-m", "diagnose", "batch-size", "--workload", "dgca", "--size", "ranks", "--ddp"),
            *("--memory-limit", RANKS_MEGABYTES),
        ),
        ("--smoke",),
    ),
    Part(
        "vqa-crops",
        "batch_size",
        2,
        (
            *("-m", "diagnose", "batch-size", "--workload", "vqa", "--max-crops-list", *FEW_CROPS),
            *("--memory-limit", CROPS_MEGABYTES),
        ),
    ),
    Part(
        "",
        "evaluated",
        2,
        ("-m", "bench.evaluated"),
        ("--samples", "2", "--size", "tiny", "--allow-dirty"),
    ),
    Part("dgca-prove", "prove", 3, ("-m", "bench.prove.dgca"), ("--seconds", "1")),
)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="measure_all", description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--prefix", default="cpu", help="of the labels (default: %(default)s)")
    add("--only", nargs="+", default=[], metavar="PART", help="as --list names them")
    add("--list", action="store_true", help="what there is, and about how long it takes")
    add("--try", action="store_true", dest="tries", help="each part once, at its smallest size")
    options = parser.parse_args(words)
    unknown = [each for each in options.only if each not in {part.key for part in PARTS}]
    if unknown:
        parser.error(f"there is no part '{unknown[0]}'; --list names them")
    chosen = [each for each in PARTS if not options.only or each.key in options.only]
    commit = read_commit(ROOT).value or ""
    if options.list:
        for each in chosen:
            state = "done" if is_done(ROOT / "reports", options.prefix, each, commit) else "to do"
            print(f"{each.key:24} about {each.minutes:g} min, {state}")
        print(f"{'together':24} about {sum(each.minutes for each in chosen):g} min")
        return 0
    if options.tries:
        with tempfile.TemporaryDirectory() as folder:
            return measure(chosen, Path(folder), "try", "", smallest=True)
    if not commit or commit.endswith("-dirty"):
        sys.exit("measure_all: commit first: a report must name the code that measured it")
    return measure(chosen, ROOT / "reports", options.prefix, commit)


def measure(
    parts: Sequence[Part], reports: Path, prefix: str, commit: str, *, smallest: bool = False
) -> int:
    """Every part that has no record of this commit; one that fails does not end the others."""
    failed = []
    for each in parts:
        if commit and is_done(reports, prefix, each, commit):
            print(f"{each.key}: done before", flush=True)
            continue
        where = ["--label", f"{prefix}-{each.name}", "--reports", str(reports)]
        if not each.name:
            where = ["--output", str(each.path(reports, prefix))]
            forget_other(each.path(reports, prefix), commit)
        extra = each.smallest if smallest else ()
        began = time.monotonic()
        done = subprocess.run([sys.executable, *each.words, *where, *extra], cwd=ROOT, check=False)
        took = (time.monotonic() - began) / 60
        print(f"{each.key}: {took:.1f} min, exit code {done.returncode}", flush=True)
        if done.returncode:
            failed.append(each.key)
    if failed:
        print(f"measure_all: not measured: {', '.join(failed)}", file=sys.stderr)
    return 3 if failed else 0


def is_done(reports: Path, prefix: str, part: Part, commit: str) -> bool:
    """Whether its record is complete and of this commit."""
    path = part.path(reports, prefix)
    try:
        record = json.loads(path.read_text())
        if not part.name:
            return bool(record["settings"]["commit"] == commit and path.with_suffix(".md").exists())
        found = record["header"]["machine"]["git_commit"]["value"]
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return bool(found == commit and record.get("complete", True))


def forget_other(path: Path, commit: str) -> None:
    """Commands that keep what they measured refuse what another commit has kept."""
    try:
        is_other = json.loads(path.read_text())["settings"]["commit"] != commit
    except (OSError, ValueError, KeyError, TypeError):
        return
    if is_other:
        path.unlink()
        path.with_suffix(".md").unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main())
