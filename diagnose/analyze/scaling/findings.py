"""What is to blame when ranks do not scale? Every loss judged, and the two old warnings."""

from __future__ import annotations

from functools import partial

from diagnose.analyze.findings import Finding
from diagnose.analyze.scaling import ledger as scaling
from diagnose.analyze.scaling.ledger import Ledger, find_straggler, rank_times
from diagnose.analyze.units import milliseconds, percent, percent_interval
from diagnose.analyze.verdicts import MATTERS, cannot_tell, cost_text, excluded, judge_cost, within
from diagnose.records.ranks import ScalingRecord

# Below and above which the field report's script warned.
LOWEST_EFFICIENCY = 0.70
HIGHEST_COMMUNICATION = 0.30

EFFICIENCY = "scaling_efficiency"  # the kind of finding that the answer itself tells

_EXCHANGE_LESS = (
    "Exchange gradients more rarely (accumulation with forward and backward inside no_sync) or "
    "fewer bytes (compression), or use a faster link; the options were tried."
)
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
    scaling.COMMUNICATION: _EXCHANGE_LESS,
    scaling.TRANSFER: _EXCHANGE_LESS,
    scaling.SHORTFALL: (
        "An all-reduce is slower inside the step than alone: try other bucket sizes, and leave a "
        "core to the communication."
    ),
    scaling.REST: "Look at the optimizer step: a fused one, or one whose state is sharded.",
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
    finding, efficiency = partial(Finding, EFFICIENCY), ledger.efficiency
    evidence = f"{percent_interval(efficiency)} over paired blocks"
    text = f"{ledger.ranks} ranks reach {percent(efficiency.center)} of {many_times(ledger.ranks)}"
    if efficiency.is_above(LOWEST_EFFICIENCY):
        return finding("excluded", "info", f"{text}.", evidence)
    if not efficiency.is_below(LOWEST_EFFICIENCY):
        return cannot_tell(EFFICIENCY, "the efficiency", evidence)
    sentence, advice = f"{text}, below {percent(LOWEST_EFFICIENCY)}", "The ledger says what first."
    if is_slower_than_one(ledger):
        sentence += "; together they are slower than one alone"
        return finding("cause", "critical", f"{sentence}.", evidence, advice)
    return finding("cause", "warning", f"{sentence}.", evidence, advice)


def judge_communication_share(ledger: Ledger) -> Finding:
    """The share of the step, with what the original script would have called so."""
    finding = partial(Finding, "scaling_communication_share")
    share, original = ledger.communication.cost.share, ledger.original_communication.cost
    evidence = (
        f"{milliseconds(ledger.communication.cost.seconds)} ms, {percent_interval(share)} of the "
        f"step; the full step less the step under no_sync, which counts the optimizer as "
        f"communication, would say {milliseconds(original.seconds)} ms, "
        f"{percent_interval(original.share)}"
    )
    text, limit = (
        f"Exposed communication is {percent(share.center)} of the step",
        percent(HIGHEST_COMMUNICATION),
    )
    if share.is_above(HIGHEST_COMMUNICATION):
        return finding("cause", "warning", f"{text}, above {limit}.", evidence, _EXCHANGE_LESS)
    if share.is_below(HIGHEST_COMMUNICATION):
        return finding("excluded", "info", f"{text}, not above {limit}.", evidence)
    return cannot_tell("scaling_communication_share", "the share of communication", evidence)


def judge_straggler(record: ScalingRecord) -> Finding:
    times = rank_times(record)
    late = find_straggler(times)
    slowest = late or max(times, key=lambda each: each.excess.center)
    evidence = (
        f"rank {slowest.rank.rank} on host {slowest.rank.node} does its own work in "
        f"{milliseconds(slowest.local)} ms, {percent_interval(slowest.excess)} above the mean"
    )
    if late is not None:
        sentence = (
            f"Rank {late.rank.rank} on host {late.rank.node} is slower than the others by "
            f"{percent(late.excess.center)} of their mean."
        )
        advice = ADVICE[scaling.WAITING]
        return Finding("scaling_straggler", "cause", "warning", sentence, evidence, advice)
    if all(within(each.excess, MATTERS) for each in times):
        return excluded("scaling_straggler", "A slow rank", evidence)
    return cannot_tell("scaling_straggler", "a slow rank", evidence)


def is_slower_than_one(ledger: Ledger) -> bool:
    """Whether all ranks together process less than one alone, by the whole interval."""
    return ledger.efficiency.is_below(1 / ledger.ranks)


def many_times(ranks: int) -> str:
    return "twice one rank" if ranks == 2 else f"{ranks} times one rank"


def say_ending(record: ScalingRecord) -> str:
    """How a run ended that did not end well; empty otherwise."""
    culprit = record.culprit
    if culprit is not None:
        return f"Rank {culprit.rank} {culprit.reason} during {culprit.where}."
    return "" if record.complete else "The run was not finished."


def _ending(record: ScalingRecord) -> list[Finding]:
    sentence = say_ending(record)
    if not sentence:
        return []
    evidence, advice = "what was measured before is kept", "Mend that rank and run again."
    if record.culprit is None:
        return [Finding("scaling_ended", "flag", "warning", sentence, evidence)]
    return [Finding("scaling_ended", "flag", "critical", sentence, evidence, advice)]
