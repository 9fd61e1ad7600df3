"""Is the link to blame? Findings on the surroundings, the sums, the rate, the ranks and the clock.

The share of the expected rate decides: from 80 % on it is fine, from 50 % on worth a look, below
that something is wrong. Without an expectation nothing is judged against one.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from diagnose.analyze.findings import Finding
from diagnose.analyze.flags import SPREAD_CRITICAL, Sign, collect
from diagnose.analyze.line_fit import Fit
from diagnose.analyze.link.bandwidth import (
    ALL_GRADIENTS,
    SizeSpeed,
    Speed,
    find_straggler,
    fit_sizes,
    measure_sizes,
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
# The timing loop may add this share to the shortest time that a verdict rests on.
LARGEST_OVERHEAD = 0.01


@dataclass(frozen=True)
class Rate:
    """What the link gave, as bus bandwidth over the sizes that are large enough to judge."""

    bytes_per_second: float
    sizes: int
    smallest: Speed


def judge(record: BandwidthRecord, expected_bytes_per_second: float | None = None) -> list[Finding]:
    """Every finding, first what is read before anything is measured."""
    sizes = measure_sizes(record)
    expectation = expect(record, expected_bytes_per_second)
    return [
        *judge_surroundings(record),
        *_mixed_versions(record),
        *_corrupt(sizes),
        *_rate(sizes, expectation),
        *_slow_network(record, sizes, expectation),
        *_straggler(record, sizes),
        *judge_trials(record),
        *_not_one_line(sizes),
        *_noisy(sizes),
        *_overhead(record, sizes, expectation),
        *_unfinished(record),
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
    return Rate(statistics.median(rate for _, rate in large), len(large), smallest)


def gradient_cost(sizes: Sequence[SizeSpeed]) -> str:
    """What exchanging the whole model costs, or the largest tensor that stands for it."""
    timed = [each.best for each in sizes if each.best is not None]
    if not timed:
        return ""
    largest = max(timed, key=lambda speed: speed.nbytes)
    whole = next((each for each in sizes if ALL_GRADIENTS in each.size.purpose), None)
    if whole is None:
        return _say_cost("the largest tensor measured", largest.nbytes, "takes", largest)
    if whole.best is not None:
        return _say_cost(ALL_GRADIENTS, whole.size.nbytes, "takes", whole.best)
    # Too large for this run, but at the largest size the rate no longer depends on it.
    return _say_cost(ALL_GRADIENTS, whole.size.nbytes, "would take about", largest)


def _say_cost(what: str, nbytes: int, verb: str, speed: Speed) -> str:
    time = number(1e3 * nbytes / speed.algorithm_rate, 3)
    return f"one all-reduce of {what} ({scaled(nbytes, 'B')}) {verb} {time} ms"


def _mixed_versions(record: BandwidthRecord) -> list[Finding]:
    versions = sorted({rank.torch_version for rank in record.ranks})
    if len(versions) < 2:
        return []
    sentence = "The ranks run different versions of torch."
    advice = "Install the same version on every host."
    return [Finding("versions", "flag", "critical", sentence, ", ".join(versions), advice)]


def _corrupt(sizes: Sequence[SizeSpeed]) -> list[Finding]:
    wrong = [each for each in sizes if each.is_corrupt]
    if not wrong:
        return []
    places = "; ".join(f"{scaled(each.size.nbytes, 'B')}: {each.reason}" for each in wrong[:4])
    return [
        Finding(
            "corrupt",
            "cause",
            "critical",
            f"All-reduces return wrong sums at {len(wrong)} of {len(sizes)} sizes.",
            places,
            "Do not train over this link. Try NCCL_P2P_DISABLE=1, then another driver, and test "
            "the memory of the devices.",
        )
    ]


def _rate(sizes: Sequence[SizeSpeed], expectation: Expectation) -> list[Finding]:
    rate = measure_rate(sizes, expectation.judged_from_bytes)
    unknown = "The link cannot be judged against an expected rate."
    if expectation.bytes_per_second is None:
        return [Finding("link_rate", "cannot tell", "info", unknown, expectation.source)]
    if rate is None:
        limit = scaled(expectation.judged_from_bytes, "B")
        reason = f"no size of {limit} or more was timed, and smaller ones do not fill the link"
        advice = "Raise --max-bytes."
        return [Finding("link_rate", "cannot tell", "info", unknown, reason, advice)]
    share = rate.bytes_per_second / expectation.bytes_per_second
    evidence = (
        f"{number(rate.bytes_per_second / 1e9, 3)} GB/s ({_say_basis(rate, expectation)}), "
        f"expected {number(expectation.bytes_per_second / 1e9, 3)} GB/s: "
        f"{expectation.link}, {expectation.source}"
    )
    evidence += f"; {expectation.reservation}" if expectation.reservation else ""
    sentence = f"The link gives {percent(share)} of what it should"
    if share >= FINE_SHARE:
        return [Finding("link_rate", "excluded", "info", f"{sentence}: it is fine.", evidence)]
    if share >= LOOK_SHARE:
        sentence += ": worth a look."
        advice = "Run with --env-sweep, and on an idle machine; the settings above come first."
        return [Finding("link_rate", "cannot tell", "warning", sentence, evidence, advice)]
    advice = (
        "Run with --env-sweep to see which way the bytes take; check the settings above, the slot "
        "and generation of the cards (nvidia-smi topo -m), and the cable or switch between hosts."
    )
    return [Finding("link_rate", "cause", "critical", f"{sentence}: it is slow.", evidence, advice)]


def _say_basis(rate: Rate, expectation: Expectation) -> str:
    plural = "s" if rate.sizes > 1 else ""
    limit = scaled(expectation.judged_from_bytes, "B")
    return f"busbw, median of {rate.sizes} size{plural} from {limit}"


def _slow_network(
    record: BandwidthRecord, sizes: Sequence[SizeSpeed], expectation: Expectation
) -> list[Finding]:
    rate = measure_rate(sizes, expectation.judged_from_bytes)
    if record.nodes < 2 or rate is None:
        return []
    if rate.bytes_per_second >= SLOW_NETWORK_BYTES_PER_SECOND:
        return []
    return [
        Finding(
            "slow_link",
            "cause",
            "critical",
            f"Slow link: the hosts exchange {number(rate.bytes_per_second / 1e9, 3)} GB/s, and "
            f"{gradient_cost(sizes)}.",
            f"{_say_basis(rate, expectation)}; 10 Gbit/s would be "
            f"{number(SLOW_NETWORK_BYTES_PER_SECOND / 1e9, 3)} GB/s",
            "Exchange gradients less often (accumulate, with forward and backward inside "
            "no_sync), compress them, or use a faster network; ddp_scaling.py measures what "
            "each brings.",
        )
    ]


def _straggler(record: BandwidthRecord, sizes: Sequence[SizeSpeed]) -> list[Finding]:
    found = find_straggler(sizes, record.ranks)
    if found is None:
        return []
    return [
        Finding(
            "straggler",
            "cause",
            "warning",
            f"Rank {found.rank} on node {found.node} takes {number(found.ratio, 3)} times the "
            "mean of the ranks.",
            f"at {found.sizes} of {found.of_sizes} sizes; rank {found.shortest_rank} has the "
            "shortest time",
            f"Look at what else runs beside rank {found.rank}, and beside rank "
            f"{found.shortest_rank}: a rank that starts late waits the least itself.",
        )
    ]


def _not_one_line(sizes: Sequence[SizeSpeed]) -> list[Finding]:
    fit = fit_sizes(sizes)
    if not isinstance(fit, Fit) or fit.is_one_line:
        return []
    sentence = "Latency plus bytes over bandwidth does not describe this link: not one line."
    evidence = f"off by {percent(fit.worst_residual)} at {scaled(fit.worst_bytes, 'B')}"
    advice = "Use the measured times or the pieces, not alpha and B, for sizes in between."
    return [Finding("not_one_line", "flag", "info", sentence, evidence, advice)]


def _noisy(sizes: Sequence[SizeSpeed]) -> list[Finding]:
    evidence = [
        f"{scaled(speed.nbytes, 'B')}, {mode}: IQR is {percent(speed.relative_iqr)} of the median"
        for each in sizes
        for mode, speed in (("one at a time", each.single), ("back to back", each.window))
        if speed is not None and speed.relative_iqr > SPREAD_CRITICAL
    ]
    advice = "Measure again on an idle machine, with --full."
    signs: list[Sign] = [("warning", each) for each in evidence]
    return collect("noisy", "Some times scatter widely.", signs, advice)


def _overhead(
    record: BandwidthRecord, sizes: Sequence[SizeSpeed], expectation: Expectation
) -> list[Finding]:
    """Against the smallest size that counts; where none is judged, the smallest of all."""
    rate = measure_rate(sizes, expectation.judged_from_bytes)
    timed = [each.single or each.best for each in sizes]
    shortest = min(
        (each for each in timed if each is not None), key=lambda each: each.nbytes, default=None
    )
    speed = rate.smallest if rate is not None else shortest
    if speed is None or record.overhead_seconds < LARGEST_OVERHEAD * speed.seconds.center:
        return []
    return [
        Finding(
            "overhead",
            "flag",
            "warning",
            "The timing loop itself is a visible part of the time.",
            f"{number(1e6 * record.overhead_seconds, 3)} µs of "
            f"{number(1e6 * speed.seconds.center, 3)} µs at {scaled(speed.nbytes, 'B')}",
            "Read times of such sizes as upper bounds.",
        )
    ]


def _unfinished(record: BandwidthRecord) -> list[Finding]:
    culprit = record.culprit
    if culprit is not None:
        sentence = f"Rank {culprit.rank} {culprit.reason} during the {culprit.where}."
        advice = "Look at the log of that rank; what is shown was measured before."
        return [Finding("culprit", "flag", "critical", sentence, "", advice)]
    if record.complete:
        return []
    sentence = "The run was not finished."
    advice = "Run it again; what is shown was measured before it ended."
    return [Finding("unfinished", "flag", "critical", sentence, "", advice)]
