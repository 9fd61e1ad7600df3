"""Is the link to blame? Findings on the surroundings, the sums, the rate, the ranks and the clock.

The share of the expected rate decides: from 80 % on it is fine, from 50 % on worth a look, below
that something is wrong. Without an expectation nothing is judged against one.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from diagnose.analyze.findings import Finding, Rule
from diagnose.analyze.flags import SPREAD_CRITICAL, Sign, collect
from diagnose.analyze.line_fit import Fit
from diagnose.analyze.link.bandwidth import (
    ALL_GRADIENTS,
    STRAGGLER_RATIO,
    SizeSpeed,
    Speed,
    fit_sizes,
    measure_sizes,
    slowest_rank,
)
from diagnose.analyze.link.expected import Expectation, expect
from diagnose.analyze.link.surroundings import judge_surroundings
from diagnose.analyze.link.trials import judge_trials
from diagnose.analyze.units import number, percent, scaled
from diagnose.records.ranks import BandwidthRecord

# Shares of the expected rate (proposals: published NVLink rings reach 93 to 98 % of the table).
FINE_SHARE = 0.80
LOOK_SHARE = 0.50
# 10 Gbit/s. The 515 MB of gradients of the full model take 0.4 s at this rate, twice the 0.2 s
# of a whole step on the field report's card.
SLOW_NETWORK_BYTES_PER_SECOND = 1.25e9
# At one or two sizes a neighbour on the machine does the same.
STRAGGLER_FEWEST_SIZES = 3
# The same rank in most sizes is a property of that rank.
STRAGGLER_SHARE = 0.5
# The timing loop may add this share to the shortest time that a verdict rests on.
LARGEST_OVERHEAD = 0.01


@dataclass(frozen=True)
class Rate:
    """What the link gave, as bus bandwidth over the sizes that are large enough to judge."""

    bytes_per_second: float
    smallest: Speed


@dataclass(frozen=True)
class MeasuredLink:
    """A record with what every finding, table and figure derives from it."""

    record: BandwidthRecord
    sizes: Sequence[SizeSpeed]
    expectation: Expectation
    rate: Rate | None  # over the sizes that are large enough to judge

    @property
    def share(self) -> float | None:
        """What it gives of what it should."""
        expected = self.expectation.bytes_per_second
        if self.rate is None or expected is None:
            return None
        return self.rate.bytes_per_second / expected


def measure_link(record: BandwidthRecord) -> MeasuredLink:
    sizes, expectation = measure_sizes(record), expect(record)
    rate = measure_rate(sizes, expectation.judged_from_bytes)
    return MeasuredLink(record, sizes, expectation, rate)


def judge(record: BandwidthRecord) -> list[Finding]:
    """Every finding, first what is read before anything is measured."""
    link = measure_link(record)
    return [
        *judge_surroundings(record),
        *_corrupt(link),
        _rate(link),
        *_slow_network(link),
        *_straggler(link),
        *judge_trials(record),
        *_noisy(link),
        *(finding for rule in RULES for finding in rule.judge(link)),
        *_culprit(link),
    ]


def measure_rate(sizes: Sequence[SizeSpeed], from_bytes: int) -> Rate | None:
    """Median over the sizes that count: one disturbed size does not decide."""
    large = [
        (each.best, each.best.bus_rate)
        for each in sizes
        if each.best is not None and each.best.bus_rate and each.best.nbytes >= from_bytes
    ]
    if not large:
        return None
    smallest = min((speed for speed, _ in large), key=lambda speed: speed.nbytes)
    return Rate(statistics.median(rate for _, rate in large), smallest)


def gradient_cost(sizes: Sequence[SizeSpeed]) -> str:
    """What exchanging the whole model costs, or the largest tensor that stands for it."""
    timed = [each.best for each in sizes if each.best is not None]
    if not timed:
        return ""
    speed = max(timed, key=lambda each: each.nbytes)
    whole = next((each for each in sizes if ALL_GRADIENTS in each.size.purpose), None)
    what, nbytes, verb = "the largest tensor measured", speed.nbytes, "takes"
    if whole is not None:
        # Too large for this run or not: at the largest size the rate no longer depends on it.
        what, nbytes = ALL_GRADIENTS, whole.size.nbytes
        verb, speed = ("would take about", speed) if whole.best is None else (verb, whole.best)
    time = number(1e3 * nbytes / speed.algorithm_rate, 3)
    return f"one all-reduce of {what} ({scaled(nbytes, 'B')}) {verb} {time} ms"


def _corrupt(link: MeasuredLink) -> list[Finding]:
    wrong = [each for each in link.sizes if each.is_corrupt]
    if not wrong:
        return []
    sentence = f"All-reduces return wrong sums at {len(wrong)} of {len(link.sizes)} sizes."
    places = "; ".join(f"{scaled(each.size.nbytes, 'B')}: {each.reason}" for each in wrong[:4])
    advice = (
        "Do not train over this link. Try NCCL_P2P_DISABLE=1, then another driver, and test the "
        "memory of the devices."
    )
    return [Finding("corrupt", "cause", "critical", sentence, places, advice)]


def _rate(link: MeasuredLink) -> Finding:
    finding = partial(Finding, "link_rate")
    rate, expectation, share = link.rate, link.expectation, link.share
    if rate is None or expectation.bytes_per_second is None or share is None:
        sentence = "The link cannot be judged against an expected rate."
        if expectation.bytes_per_second is None:
            return finding("cannot tell", "info", sentence, expectation.source)
        limit = scaled(expectation.judged_from_bytes, "B")
        reason = f"no size of {limit} or more was timed, and smaller ones do not fill the link"
        return finding("cannot tell", "info", sentence, reason, "Raise --max-bytes.")
    evidence = (
        f"{number(rate.bytes_per_second / 1e9, 3)} GB/s (busbw from "
        f"{scaled(rate.smallest.nbytes, 'B')}), expected "
        f"{number(expectation.bytes_per_second / 1e9, 3)} GB/s: {expectation.link}, "
        f"{expectation.source}"
    )
    evidence += f"; {expectation.reservation}" if expectation.reservation else ""
    sentence = f"The link gives {percent(share)} of what it should"
    if share >= FINE_SHARE:
        return finding("excluded", "info", f"{sentence}: it is fine.", evidence)
    if share >= LOOK_SHARE:
        advice = "Run with --env-sweep, and on an idle machine; check the settings first."
        return finding("cannot tell", "warning", f"{sentence}: worth a look.", evidence, advice)
    advice = (
        "Run with --env-sweep to see which way the bytes take; check the settings, the slot and "
        "generation of the cards (nvidia-smi topo -m), and the cable or switch between hosts."
    )
    return finding("cause", "critical", f"{sentence}: it is slow.", evidence, advice)


def _slow_network(link: MeasuredLink) -> list[Finding]:
    rate = link.rate
    if link.record.nodes < 2 or rate is None:
        return []
    if rate.bytes_per_second >= SLOW_NETWORK_BYTES_PER_SECOND:
        return []
    sentence = (
        f"Slow link: the hosts exchange {number(rate.bytes_per_second / 1e9, 3)} GB/s, and "
        f"{gradient_cost(link.sizes)}."
    )
    advice = (
        "Exchange gradients less often (accumulate, with forward and backward inside no_sync), "
        "compress them, or use a faster network; ddp_scaling.py measures what each brings."
    )
    evidence = f"busbw from {scaled(rate.smallest.nbytes, 'B')}; 10 Gbit/s would be 1.25 GB/s"
    return [Finding("slow_link", "cause", "critical", sentence, evidence, advice)]


def _straggler(link: MeasuredLink) -> list[Finding]:
    """The rank that is slowest by more than the ratio in most sizes."""
    timed = [each for each in link.sizes if len(each.lateness) > 1]
    late = [each for each in timed if max(each.lateness) > STRAGGLER_RATIO]
    if not late:
        return []
    rank, count = Counter(map(slowest_rank, late)).most_common(1)[0]
    if count < STRAGGLER_FEWEST_SIZES or count <= STRAGGLER_SHARE * len(timed):
        return []
    of_rank = [each.lateness for each in late if slowest_rank(each) == rank]
    first = Counter(each.index(min(each)) for each in of_rank).most_common(1)[0][0]
    ratio = statistics.median(each[rank] for each in of_rank)
    node = next((each.node for each in link.record.ranks if each.rank == rank), 0)
    return [
        Finding(
            "straggler",
            "cause",
            "warning",
            f"Rank {rank} on node {node} takes {number(ratio, 3)} times the mean of the ranks.",
            f"at {count} of {len(timed)} sizes; rank {first} has the shortest time",
            f"Look at what else runs beside rank {rank}, and beside rank {first}: a rank that "
            "starts late waits the least itself.",
        )
    ]


def _culprit(link: MeasuredLink) -> list[Finding]:
    culprit = link.record.culprit
    if culprit is None:
        return []
    sentence = f"Rank {culprit.rank} {culprit.reason} during the {culprit.where}."
    advice = "Look at the log of that rank; what is shown was measured before."
    return [Finding("culprit", "flag", "critical", sentence, "", advice)]


def _mixed_versions(link: MeasuredLink) -> str | None:
    versions = sorted({rank.torch_version for rank in link.record.ranks})
    return ", ".join(versions) if len(versions) > 1 else None


def _not_one_line(link: MeasuredLink) -> str | None:
    fit = fit_sizes(link.sizes)
    if not isinstance(fit, Fit) or fit.is_one_line:
        return None
    return f"off by {percent(fit.worst_residual)} at {scaled(fit.worst_bytes, 'B')}"


def _noisy(link: MeasuredLink) -> list[Finding]:
    signs: list[Sign] = [
        (
            "warning",
            f"{scaled(speed.nbytes, 'B')}, {mode}: IQR is {percent(speed.relative_iqr)} of the "
            "median",
        )
        for each in link.sizes
        for mode, speed in (("one at a time", each.single), ("back to back", each.window))
        if speed is not None and speed.relative_iqr > SPREAD_CRITICAL
    ]
    advice = "Measure again on an idle machine, with --full."
    return collect("noisy", "Some all-reduce times scatter widely.", signs, advice)


def _overhead(link: MeasuredLink) -> str | None:
    """Against the smallest size that counts; where none is judged, the smallest of all."""
    timed = [each.single or each.best for each in link.sizes]
    speeds = [each for each in timed if each is not None]
    if not speeds:
        return None
    shortest = min(speeds, key=lambda each: each.nbytes)
    speed = shortest if link.rate is None else link.rate.smallest
    overhead, seconds = link.record.overhead_seconds, speed.seconds.center
    if overhead < LARGEST_OVERHEAD * seconds:
        return None
    return (
        f"{number(1e6 * overhead, 3)} µs of {number(1e6 * seconds, 3)} µs at "
        f"{scaled(speed.nbytes, 'B')}"
    )


RULES: tuple[Rule[MeasuredLink], ...] = (
    Rule(
        "versions",
        "flag",
        "critical",
        "The ranks run different versions of torch.",
        _mixed_versions,
        "Install the same version on every host.",
    ),
    Rule(
        "not_one_line",
        "flag",
        "info",
        "Latency plus bytes over bandwidth does not describe this link.",
        _not_one_line,
        "Use the measured times, not alpha and B, for sizes in between.",
    ),
    Rule(
        "overhead",
        "flag",
        "warning",
        "The timing loop itself is a visible part of the time.",
        _overhead,
        "Read times of such sizes as upper bounds.",
    ),
    Rule(
        "unfinished",
        "flag",
        "critical",
        "The run was not finished.",
        lambda link: (
            not (link.record.complete or link.record.culprit) and "what was measured is kept"
        ),
        "Run it again.",
    ),
)
