"""What became of the first report's claims about two cards? Claimed, measured here, verdict."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from diagnose.analyze.claims import arithmetic, judges, options
from diagnose.analyze.claims.judges import ClaimResult, Evidence, Judge, contrary, not_testable
from diagnose.analyze.claims.ledger import Claim
from diagnose.analyze.optimize.experiment import Outcome
from diagnose.analyze.scaling import ledger as scaling
from diagnose.analyze.scaling.cadence import cadence_share
from diagnose.analyze.scaling.findings import LOWEST_EFFICIENCY, is_slower_than_one
from diagnose.analyze.scaling.options import as_experiments
from diagnose.analyze.units import milliseconds, percent, percent_interval, scaled
from diagnose.analyze.verdicts import MATTERS
from diagnose.records.ranks import ScalingRecord

# Of the first report: watts of each of two cards.
WATTS_EACH_OF_TWO = 100
# A card this close to its limit is at full power.
FULL_POWER = 0.9
# GB/s of its own kind (every byte counted twice) that it called normal.
NORMAL_RATE = 20e9


@dataclass(frozen=True)
class DdpEvidence:
    """A record of several ranks with its options already judged."""

    record: ScalingRecord
    experiments: Evidence


DdpJudge = Callable[[DdpEvidence], ClaimResult]


def judge_ddp_claims(
    record: ScalingRecord, outcomes: Sequence[Outcome]
) -> list[tuple[Claim, ClaimResult]]:
    """Rows for the ledger of claims, in the order of the first report."""
    evidence = DdpEvidence(record, Evidence(as_experiments(record), tuple(outcomes)))
    judged = [(id_, says, judge(evidence)) for id_, says, judge in CLAIMS]
    return [(Claim(id_, says, _settled(result)), result) for id_, says, result in judged]


def judge_rate(evidence: DdpEvidence) -> ClaimResult:
    """The rate of the largest all-reduce, by both ways of counting."""
    points = scaling.curve_points(evidence.record.curve)
    if not points:
        return not_testable("no all-reduce was measured")
    nbytes, seconds = points[-1]
    rate = nbytes / seconds
    measured = (
        f"{scaled(nbytes, 'B')} in {1e3 * seconds:.3g} ms: {scaled(rate, 'B/s')}, or "
        f"{scaled(2 * rate, 'B/s')} when every byte counts twice"
    )
    if evidence.record.backend != "nccl":
        return ClaimResult("NOT TESTABLE HERE", measured, "it is said of NCCL, this is gloo")
    if 2 * rate < NORMAL_RATE:
        return ClaimResult("CONFIRMED", measured, "the rate is below the 20 GB/s called normal")
    return ClaimResult("REFUTED", measured)


def judge_two_are_slower(evidence: DdpEvidence) -> ClaimResult:
    ledger = scaling.build_ledger(evidence.record)
    if ledger is None:
        return not_testable(scaling.find_obstacle(evidence.record))
    gain = ledger.ranks * ledger.efficiency.center
    measured = (
        f"{ledger.ranks} ranks: {gain:.2f}x of one, an efficiency of "
        f"{percent_interval(ledger.efficiency)}"
    )
    if is_slower_than_one(ledger):
        return ClaimResult("CONFIRMED", measured)
    high = ledger.efficiency.high
    if high is not None and high < LOWEST_EFFICIENCY:
        return ClaimResult("CONDITIONAL", measured, "on the machine: they lose less here")
    return contrary(evidence.experiments, measured)


def judge_cause(evidence: DdpEvidence) -> ClaimResult:
    """Whether communication is what most of the scaling is lost to."""
    ledger = scaling.build_ledger(evidence.record)
    if ledger is None:
        return not_testable(scaling.find_obstacle(evidence.record))
    own, largest = ledger.communication, ledger.causes[0]
    measured = (
        f"exposed communication {milliseconds(own.cost.seconds)} ms of "
        f"{milliseconds(ledger.total.cost.seconds)} ms lost"
    )
    if own.cost.seconds.low is None:
        return not_testable("there are too few blocks for an interval")
    if largest is own and own.cost.seconds.low > 0:
        return ClaimResult("CONFIRMED", measured, "the largest loss here too")
    measured += f"; the largest is {largest.name}, {milliseconds(largest.cost.seconds)} ms"
    return contrary(evidence.experiments, measured)


def judge_card_power(evidence: DdpEvidence) -> ClaimResult:
    values, missing = _watts(evidence.record)
    if missing:
        return not_testable(missing)
    text = ", ".join(f"{value:.0f} W" for value in values)
    if max(values) <= WATTS_EACH_OF_TWO:
        return ClaimResult("CONFIRMED", text)
    return ClaimResult("CONDITIONAL", text, "on the link: cards that wait draw little")


def judge_full_power(evidence: DdpEvidence) -> ClaimResult:
    values, missing = _watts(evidence.record)
    gpus = evidence.record.header.machine.gpus
    limit = gpus[0].power_limit_watts.value if gpus else None
    if missing or not limit:
        return not_testable(missing or "no power limit was read")
    share = max(values) / limit
    measured = f"{max(values):.0f} of {limit:.0f} W, {percent(share)}, in the step of all ranks"
    if share < FULL_POWER:
        return ClaimResult("CONFIRMED", measured)
    return ClaimResult("REFUTED", measured)


def _watts(record: ScalingRecord) -> tuple[list[float], str]:
    """By rank, or why some are unknown."""
    missing = next((each.reason for each in record.watts if each.value is None), "")
    if not record.watts:
        missing = "power was not read"
    return [each.value or 0.0 for each in record.watts], missing


def judge_environment(evidence: DdpEvidence) -> ClaimResult:
    if evidence.record.backend != "nccl":
        return not_testable("gloo does not read the variables of NCCL")
    return not_testable("one run has one environment; `ddp_bandwidth.py --env-sweep` tries others")


def judge_topology(evidence: DdpEvidence) -> ClaimResult:
    links = evidence.record.header.machine.links
    if not links:
        return not_testable("no link between two GPUs was read")
    kinds = ", ".join(
        dict.fromkeys(link.kind.value or f"unknown ({link.kind.reason})" for link in links)
    )
    return ClaimResult("CONFIRMED" if kinds == "SYS" else "CONDITIONAL", kinds, "on the machine")


def judge_cadence(evidence: DdpEvidence) -> ClaimResult:
    often = cadence_share(evidence.record, 500, 500)
    rarely = cadence_share(evidence.record, 2000, 1000)
    if often.value is None or rarely.value is None:
        return not_testable(often.reason or rarely.reason)
    measured = (
        f"{percent(often.value)} of wall time at every 500 steps, {percent(rarely.value)} when "
        "evaluated every 2000 and saved every 1000"
    )
    if often.value > MATTERS:
        return ClaimResult("CONFIRMED", measured)
    condition = "on the size of the evaluation set: here even every 500 steps cost little"
    return ClaimResult("CONDITIONAL", measured, condition)


def judge_input_contention(evidence: DdpEvidence) -> ClaimResult:
    ledger = scaling.build_ledger(evidence.record)
    reason = "no experiment varies the workers of a rank"
    if ledger is None:
        return not_testable(reason)
    loss = next(each for each in ledger.losses if each.name == scaling.INPUT)
    measured = (
        f"input contention is {milliseconds(loss.cost.seconds)} ms, "
        f"{percent_interval(loss.cost.share)} of the step"
    )
    return ClaimResult("NOT TESTABLE HERE", measured, reason)


def judge_original_share(evidence: DdpEvidence) -> ClaimResult:
    """The script's communication: full step less no_sync, optimiser and all."""
    ledger = scaling.build_ledger(evidence.record)
    if ledger is None:
        return not_testable(scaling.find_obstacle(evidence.record))
    said, true = ledger.original_communication.cost, ledger.communication.cost
    over = said.share.center - true.share.center
    measured = (
        f"the script's formula says {percent_interval(said.share)}, without the optimiser it is "
        f"{percent_interval(true.share)}: overstated by "
        f"{1e3 * (said.seconds.center - true.seconds.center):.2f} ms"
    )
    if over > MATTERS:
        return ClaimResult("REFUTED", measured, "the formula counts the optimiser step")
    return ClaimResult("CONDITIONAL", measured, "on an optimiser step that takes little time")


def _experiment(judge: Judge) -> DdpJudge:
    return lambda evidence: judge(evidence.experiments)


def _always(result: ClaimResult) -> DdpJudge:
    return lambda evidence: result


def _settled(result: ClaimResult) -> Judge:
    return lambda evidence: result


# In the order of the first report. Arithmetic on its printed figures stands before the
# measurement of the same claim.
CLAIMS: tuple[tuple[str, str, DdpJudge], ...] = (
    (
        "003-05",
        "all-reduce bandwidths 0.92, 1.01 and 1.07 GB/s (arithmetic)",
        _always(arithmetic.bandwidth()),
    ),
    ("003-49", "two cards at 1.4 it/s (arithmetic)", _always(arithmetic.two_cards())),
    ("003-49", "two cards are slower than one", judge_two_are_slower),
    ("003-50", "each of two cards draws only 100 W", judge_card_power),
    (
        "003-51",
        "the bandwidth explains the step of two cards (arithmetic)",
        _always(arithmetic.communication()),
    ),
    ("003-51", "NCCL reaches 1 GB/s where 20 GB/s is normal", judge_rate),
    ("003-51", "communication is the cause", judge_cause),
    ("003-52", "NCCL_SHM_DISABLE=1 takes shared memory away", judge_environment),
    ("003-53", "NCCL_IB_DISABLE=1 takes InfiniBand away", judge_environment),
    ("003-54", "the cards meet across NUMA nodes (SYS)", judge_topology),
    (
        "003-55",
        "no_sync() around backward alone saves communication",
        _experiment(options.judge_published_no_sync),
    ),
    (
        "003-57",
        "accumulation over 4 steps communicates 4 times less",
        _experiment(options.judge_accumulation),
    ),
    ("003-58", "a bucket of 100 MB is faster", _experiment(judges.speeds_up("bucket_cap_100"))),
    (
        "003-59",
        "gradient_as_bucket_view is faster: less is copied",
        _experiment(judges.speeds_up("bucket_view")),
    ),
    ("003-60", "static_graph is faster", _experiment(judges.speeds_up("static_graph"))),
    ("003-61", "a bucket of 200 MB is faster", _experiment(judges.speeds_up("bucket_cap_200"))),
    (
        "003-62",
        "static_graph goes together with accumulation",
        _experiment(options.judge_static_graph_no_sync),
    ),
    ("003-63", "saving every 1000 steps instead of 500 blocks less", judge_cadence),
    ("003-65", "both NCCL variables belong in the command of two cards", judge_environment),
    (
        "003-76",
        "accumulation 4 at the same batch (4×32 for 1×128) is faster",
        _experiment(judges.speeds_up("accumulate_4x32")),
    ),
    (
        "003-81",
        "accumulation 4 at the same batch communicates 75 % less",
        _experiment(options.judge_same_batch),
    ),
    (
        "003-82",
        "a bucket of 200 MB needs fewer all-reduces",
        _experiment(options.judge_fewer_all_reduces("bucket_cap_200")),
    ),
    ("003-84", "evaluating every 2000 steps blocks less", judge_cadence),
    ("003-85", "two workers per card avoid contention", judge_input_contention),
    ("003-89", "communication is the full step less no_sync", judge_original_share),
    (
        "003-90",
        "the advised options speed two cards up",
        _experiment(options.judge_advice),
    ),
    ("003-91", "power is not full: 320 of 450 W", judge_full_power),
    (
        "003-96",
        "two cards run out of memory above batch 128, one does not",
        _experiment(options.judge_out_of_memory),
    ),
    (
        "003-97",
        "gradient buckets take extra memory",
        lambda evidence: options.judge_bucket_memory(
            evidence.experiments, evidence.record.gradient_bytes
        ),
    ),
    (
        "003-98",
        "gradient_as_bucket_view saves memory",
        _experiment(options.judge_view_memory),
    ),
    (
        "003-102",
        "FSDP suits a slow link better than DDP",
        _experiment(judges.speeds_up("fsdp2")),
    ),
)
