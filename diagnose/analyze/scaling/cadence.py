"""What do evaluation and saving cost a run? Their share of its time, for any cadence."""

from __future__ import annotations

from diagnose.analyze.scaling.ledger import build_ledger, find_obstacle
from diagnose.records.header import Reading
from diagnose.records.ranks import ScalingRecord

# Evaluate every so many steps, save every so many. The field report's default was 500 for both;
# it advised to save every 1000 and to evaluate every 2000.
CADENCES = ((500, 500), (1000, 1000), (2000, 1000), (2000, 2000))


def cadence_share(record: ScalingRecord, evaluate_every: int, save_every: int) -> Reading:
    """Of the wall time of a run on all ranks."""
    ledger, costs = build_ledger(record), record.cadence
    if costs is None:
        return Reading(None, "neither evaluation nor saving was timed")
    if ledger is None:
        return Reading(None, f"the step has no time: {find_obstacle(record)}")
    evaluation, saving = costs.evaluation_seconds, costs.saving_seconds
    if evaluation.value is None or saving.value is None:
        return evaluation if evaluation.value is None else saving
    per_step = evaluation.value / evaluate_every + saving.value / save_every
    return Reading(per_step / (per_step + ledger.together.center))
