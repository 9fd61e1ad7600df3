"""Which numbers of steps and of ranks decide claims?"""

from __future__ import annotations

import math

from diagnose.analyze import derive
from diagnose.analyze.claims.verdict import Evidence, Found, NotMeasured
from diagnose.analyze.scaling.ledger import Ledger, build_ledger, curve_points, find_obstacle
from diagnose.analyze.units import PERCENT, Unit, scale
from diagnose.records.stats import Interval, log_ratio_interval

RATE = Unit(suffix="B/s", prefixed=True)


def ranks_gain(evidence: Evidence) -> Found:
    """Throughput of all ranks over that of one."""
    ledger = _ledger(evidence)
    return Found(scale(ledger.efficiency, ledger.ranks), f"{ledger.ranks} ranks")


def communication_share(evidence: Evidence) -> Found:
    """Exposed communication over everything that is lost, each at its worst end."""
    ledger = _ledger(evidence)
    own, whole = ledger.communication.cost.seconds, ledger.total.cost.seconds
    if own.low is None or own.high is None or not whole.low or not whole.high or whole.low < 0:
        raise NotMeasured("it is not proven that anything is lost")
    part = Interval(own.center / whole.center, own.low / whole.high, own.high / whole.low)
    return Found(part, unit=PERCENT)


def all_reduce_rate(evidence: Evidence) -> Found:
    """Of the largest all-reduce; every byte counts twice, as it did in the report."""
    points = curve_points(evidence.record.curve)
    if not points:
        raise NotMeasured("no all-reduce was measured")
    nbytes, seconds = points[-1]
    return Found(point(2 * nbytes / seconds), evidence.record.backend, RATE)


def stage(evidence: Evidence, key: str) -> Found:
    """The reference of a stage over its result, from the same blocks."""
    result = derive.result(evidence.record, key)
    reference = derive.reference(evidence.record, key)
    if result is None or reference is None:
        raise NotMeasured(f"the stage {key} was not measured")
    before, after = (derive.step_values(each.timing) for each in (reference, result))
    ratio = log_ratio_interval(before, after).map(math.exp)
    return Found(ratio, f"batch {result.samples_per_step}")


def moving_share(evidence: Evidence) -> Found:
    """What moving all operands would take of the widest step, at the measured rate of memory."""
    for key in derive.HEADLINE_STAGES:
        for each in derive.results(evidence.record, key):
            share = derive.moving_share(evidence.record, each)
            if share is not None:
                return Found(share, f"{key}, at most", PERCENT)
    raise NotMeasured("the bytes of no step, or no rate of memory, were measured")


def point(value: float) -> Interval:
    """Counted, or read once: nothing scatters."""
    return Interval(value, value, value)


def _ledger(evidence: Evidence) -> Ledger:
    ledger = build_ledger(evidence.record)
    if ledger is None:
        raise NotMeasured(find_obstacle(evidence.record))
    return ledger
