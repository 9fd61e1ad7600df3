"""Which numbers of steps, of ranks and of their link decide claims?"""

from __future__ import annotations

import math
from dataclasses import replace

from diagnose.analyze import derive
from diagnose.analyze.claims.verdict import Evidence, Found, NotDecided, NotMeasured
from diagnose.analyze.link.surroundings import NO_MEMORY, Surroundings, read_variables
from diagnose.analyze.link.trials import REAL_DIFFERENCE, compare_trials
from diagnose.analyze.scaling.ledger import Ledger, build_ledger, find_obstacle
from diagnose.analyze.units import PERCENT, number, scale
from diagnose.records.header import Reading
from diagnose.records.stats import Interval, log_ratio_interval

# AdamW reads and rewrites each weight and its two moments, all of them float32.
STATE_BYTES_PER_WEIGHT = 12
# No GPU has a larger one; what it keeps from one step to the next need not be moved.
LARGEST_CACHE_BYTES = 256 * 2**20
# Evaluate every so many steps: the field report's default, and its advice.
OFTEN, RARELY = 500, 2000


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


def rarer_evaluation(evidence: Evidence) -> Found:
    """Time with an evaluation every 500 steps over that with one every 2000."""
    step, cost = _ledger(evidence).together, evidence.record.cadence
    if cost is None:
        raise NotMeasured("no evaluation was timed")
    once = cost.evaluation_seconds.value
    if once is None:
        raise NotMeasured(cost.evaluation_seconds.reason)
    ratio = step.map(lambda seconds: (seconds + once / OFTEN) / (seconds + once / RARELY))
    return Found(ratio, f"{number(once, 3)} s for {cost.evaluated_samples} samples")


def without_shared_memory(evidence: Evidence) -> Found:
    """Bandwidth with NCCL_SHM_DISABLE=1 over that as it is, no surer than fresh processes allow."""
    record = evidence.record
    if record.backend != "nccl":
        raise NotDecided(f"the ranks use {record.backend}, and {NO_MEMORY} is a setting of NCCL")
    already = Surroundings(record, read_variables(record)).switched_off(NO_MEMORY)
    if already:
        raise NotDecided(f"shared memory was off before the run: {already}")
    trials = (each for each in compare_trials(record) if each.trial.variables == {NO_MEMORY: "1"})
    tried = next(trials, None)
    if tried is None:
        raise NotMeasured(f"{NO_MEMORY}=1 was not tried (--env-sweep)")
    if tried.speed is None or tried.ratio is None:
        raise NotMeasured(str(tried))
    kept = Interval(tried.ratio, tried.ratio / REAL_DIFFERENCE, tried.ratio * REAL_DIFFERENCE)
    return Found(kept, f"{number(tried.speed.algorithm_rate / 1e9, 3)} GB/s are left", PERCENT)


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
    """Of a step of the whole model, what moving its operands takes at the rate of this memory.

    At most every operand is moved, and at least what the optimizer rewrites and no cache holds.
    """
    record = evidence.record
    full = derive.find_stage(record, "full_model")
    # Skipped where there is nothing around the backbone, whose step is then the whole one.
    key = "real_data" if full is not None and full.status == "skipped" else "full_model"
    step = derive.result(record, key)
    most = None if step is None else derive.moving_share(record, step)
    if step is None or most is None:
        raise NotMeasured("the bytes of no step, or no rate of memory, were measured")
    state = STATE_BYTES_PER_WEIGHT * record.workload.parameters
    rewritten = Reading(2.0 * max(0, state - LARGEST_CACHE_BYTES))  # read and written
    least = derive.moving_share(record, replace(step, bytes_per_step=rewritten))
    share = Interval(most.center, None if least is None else least.low, most.high)
    return Found(share, f"{key}, from what AdamW rewrites to every operand", PERCENT)


def point(value: float) -> Interval:
    """Counted, or read once: nothing scatters."""
    return Interval(value, value, value)


def _ledger(evidence: Evidence) -> Ledger:
    ledger = build_ledger(evidence.record)
    if ledger is None:
        raise NotMeasured(find_obstacle(evidence.record))
    return ledger
