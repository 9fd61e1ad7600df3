"""What is to blame when ranks do not scale? Every loss judged, and the two old warnings."""

from __future__ import annotations

from diagnose.analyze.findings import Finding
from diagnose.analyze.scaling import ledger as scaling
from diagnose.analyze.scaling.ledger import Ledger, find_straggler, rank_times
from diagnose.analyze.units import milliseconds, percent, percent_interval
from diagnose.analyze.verdicts import MATTERS, cannot_tell, cost_text, excluded, judge_cost, within
from diagnose.records.ranks import ScalingRecord
from diagnose.records.stats import Interval

# Below and above which the field report's script warned.
LOWEST_EFFICIENCY = 0.70
HIGHEST_COMMUNICATION = 0.30

# What removes each loss. In the ledger's order.
ADVICE = {
    scaling.COMPUTE: (
        "Give each rank its own cores and fewer threads, and check that cards do not share a "
        "power limit or cooling."
    ),
    scaling.INPUT: (
        "Let each rank load with fewer workers, preload the data, or put them on faster storage."
    ),
    scaling.WAITING: (
        "Give every rank as much work: batches of like length, the same card, no other job on it."
    ),
    scaling.COMMUNICATION: (
        "Exchange gradients more rarely (accumulation with forward and backward inside no_sync) "
        "or fewer bytes (compression); see the options below."
    ),
    scaling.TRANSFER: (
        "Exchange gradients more rarely (accumulation with forward and backward inside no_sync) "
        "or fewer bytes (compression), or use a faster link; see the options below."
    ),
    scaling.SHORTFALL: (
        "An all-reduce is slower inside the step than alone: try other bucket sizes, and leave a "
        "core to the communication."
    ),
    scaling.REST: "Look at the optimiser step: a fused one, or one whose state is sharded.",
}


def judge_scaling(record: ScalingRecord) -> list[Finding]:
    """Everything that can be concluded; without a ledger only how the run ended."""
    ledger = scaling.build_ledger(record)
    if ledger is None:
        return _ending(record)
    return [
        *_ending(record),
        judge_efficiency(ledger),
        judge_communication_share(ledger),
        *(
            judge_cost(
                f"scaling_{loss.name.split(' (')[0].replace(' ', '_')}",
                loss.name[0].upper() + loss.name[1:],
                loss.cost,
                cost_text(loss.cost),
                ADVICE[loss.name],
            )
            for loss in ledger.losses
        ),
        judge_straggler(record),
    ]


def judge_efficiency(ledger: Ledger) -> Finding:
    found, evidence = ledger.efficiency, f"{percent_interval(ledger.efficiency)} over paired blocks"
    text = f"{ledger.ranks} ranks reach {percent(found.center)} of {many_times(ledger.ranks)}"
    if _is_above(found, LOWEST_EFFICIENCY):
        return Finding("scaling_efficiency", "excluded", "info", f"{text}.", evidence)
    if found.high is None or found.high >= LOWEST_EFFICIENCY:
        return cannot_tell("scaling_efficiency", "the efficiency", evidence)
    slower = "; together they are slower than one alone" if is_slower_than_one(ledger) else ""
    return Finding(
        "scaling_efficiency",
        "cause",
        "critical" if slower else "warning",
        f"{text}, below {percent(LOWEST_EFFICIENCY)}{slower}.",
        evidence,
        "The ledger says what to change first.",
    )


def judge_communication_share(ledger: Ledger) -> Finding:
    """The share of the step, with what the original script would have called so."""
    share, original = ledger.communication.cost.share, ledger.original_communication.cost
    evidence = (
        f"{milliseconds(ledger.communication.cost.seconds)} ms, {percent_interval(share)} of the "
        f"step; the full step less the step under no_sync, which counts the optimiser as "
        f"communication, would say {milliseconds(original.seconds)} ms, "
        f"{percent_interval(original.share)}"
    )
    if share.low is not None and share.low > HIGHEST_COMMUNICATION:
        return Finding(
            "scaling_communication_share",
            "cause",
            "warning",
            f"Exposed communication is {percent(share.center)} of the step, above "
            f"{percent(HIGHEST_COMMUNICATION)}.",
            evidence,
            ADVICE[scaling.COMMUNICATION],
        )
    if share.high is not None and share.high <= HIGHEST_COMMUNICATION:
        return Finding(
            "scaling_communication_share",
            "excluded",
            "info",
            f"Exposed communication is {percent(share.center)} of the step, not above "
            f"{percent(HIGHEST_COMMUNICATION)}.",
            evidence,
        )
    return cannot_tell("scaling_communication_share", "the share of communication", evidence)


def judge_straggler(record: ScalingRecord) -> Finding:
    times = rank_times(record)
    slowest = max(times, key=lambda each: each.excess.center)
    evidence = (
        f"rank {slowest.rank.rank} on host {slowest.rank.node} does its own work in "
        f"{milliseconds(slowest.local)} ms, {percent_interval(slowest.excess)} above the mean"
    )
    late = find_straggler(times)
    if late is not None:
        return Finding(
            "scaling_straggler",
            "cause",
            "warning",
            f"Rank {late.rank.rank} on host {late.rank.node} is slower than the others by "
            f"{percent(late.excess.center)} of their mean.",
            evidence,
            ADVICE[scaling.WAITING],
        )
    if all(within(each.excess, MATTERS) for each in times):
        return excluded("scaling_straggler", "A slow rank", evidence)
    return cannot_tell("scaling_straggler", "a slow rank", evidence)


def is_slower_than_one(ledger: Ledger) -> bool:
    """Whether all ranks together process less than one alone, by the whole interval."""
    high = ledger.efficiency.high
    return high is not None and ledger.ranks * high < 1


def many_times(ranks: int) -> str:
    return "twice one rank" if ranks == 2 else f"{ranks} times one rank"


def _ending(record: ScalingRecord) -> list[Finding]:
    culprit = record.culprit
    if culprit is not None:
        return [
            Finding(
                "scaling_ended",
                "flag",
                "critical",
                f"Rank {culprit.rank} {culprit.reason} during {culprit.where}.",
                "what was measured before is kept",
                "Mend that rank and run again.",
            )
        ]
    if not record.complete:
        sentence = "The run was not finished."
        return [Finding("scaling_ended", "flag", "warning", sentence, "what was measured is kept")]
    return []


def _is_above(interval: Interval, bound: float) -> bool:
    return interval.low is not None and interval.low >= bound
