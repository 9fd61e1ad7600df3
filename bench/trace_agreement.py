"""Do our figures of real traces agree with those that a peer printed, and with what came true?

python -m bench.trace_agreement DIR

DIR holds traces (`NAME.json.gz`) beside a peer's breakdown (`NAME.gpu_timeline.csv`), and pairs of
runs whose names say how many loader workers they had (`…workers_0…`, `…workers_4…`).
"""

from __future__ import annotations

import csv
import re
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

from bench.kept import row, table
from diagnose.measure.trace.reading import read_traces
from diagnose.records.trace import Device, RankTrace

MOST_POINTS = 0.1
_WORKERS = re.compile(r"workers_(\d+)")


def compare(trace: Path, peer: Path) -> Iterator[tuple[str, float, float, float]]:
    """The figure, the peer's percent, ours of everything, ours of what was launched inside."""
    with peer.open(encoding="utf-8") as file:
        told = {row["type"]: float(row["percent"]) for row in csv.DictReader(file)}
    device = read_traces([trace], "agreement").ranks[0].device
    assert device is not None
    for name, whole, launched in (
        ("busy_time", share(device, "busy"), share(device, "launched_busy")),
        ("computation_time", share(device, "computing"), share(device, "launched_computing")),
    ):
        yield name, told[name], whole, launched
        if name == "busy_time":
            yield "idle_time", told["idle_time"], 100 - whole, 100 - launched


def share(device: Device, name: str) -> float:
    total = device.launched_seconds if name.startswith("launched") else device.seconds
    value: float = getattr(device, name)
    return 100 * value / total


def mean_step(rank: RankTrace) -> float:
    return statistics.median(each.seconds for each in rank.steps) * 1e3


def main() -> int:
    folder = Path(sys.argv[1])
    disagreements = 0
    titles = "<trace", "<figure", ">peer %", ">ours %", ">launched in the trace %", "<agrees"
    print(*table(titles, ()), sep="\n")
    for peer in sorted(folder.rglob("*.gpu_timeline.csv")):
        name = peer.name.removesuffix(".gpu_timeline.csv")
        for figure, theirs, ours, launched in compare(peer.with_name(f"{name}.json.gz"), peer):
            agrees = abs(theirs - ours) <= MOST_POINTS
            reason = abs(theirs - launched) <= MOST_POINTS
            word = "yes" if agrees else "only without work launched before" if reason else "NO"
            disagreements += word == "NO"
            shares = (f"{each:.2f}" for each in (theirs, ours, launched))
            print(row((name, figure, *shares, word)))
    runs = [
        (int(found.group(1)), read_traces([path], "agreement").ranks[0])
        for path in sorted(folder.rglob("*workers_*.json.gz"))
        if (found := _WORKERS.search(path.name))
    ]
    with_workers = [mean_step(rank) for workers, rank in runs if workers]
    if with_workers:
        titles = (
            "<trace",
            ">step ms",
            ">loader ms",
            ">bound ms",
            ">came true ms",
            "<bound is closer",
        )
        print("", *table(titles, ()), sep="\n")
    for workers, rank in runs:
        if workers == 0 and with_workers:
            loader = rank.host["loader"] * 1e3
            bound = next(each.seconds for each in rank.bounds if each.cause == "input") * 1e3
            real = mean_step(rank) - statistics.median(with_workers)
            closer = abs(bound - real) < abs(loader - real)
            disagreements += not closer
            figures = (f"{x:.1f}" for x in (mean_step(rank), loader, bound, real))
            print(row((rank.file, *figures, "yes" if closer else "NO")))
    return 1 if disagreements else 0


if __name__ == "__main__":
    sys.exit(main())
