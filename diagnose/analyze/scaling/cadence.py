"""What do evaluation and saving cost a run? Their share of its time, for any cadence."""

from __future__ import annotations

from diagnose.analyze.scaling import ledger as scaling
from diagnose.analyze.units import number, percent
from diagnose.records.header import Reading
from diagnose.records.ranks import ScalingRecord
from diagnose.render.markdown import Footnotes, table

# Evaluate every so many steps, save every so many. The field report's default was 500 for both;
# it advised to save every 1000 and to evaluate every 2000.
CADENCES = ((500, 500), (1000, 1000), (2000, 1000), (2000, 2000))


def cadence_share(record: ScalingRecord, evaluate_every: int, save_every: int) -> Reading:
    """Of the wall time of a run on all ranks."""
    ledger, costs = scaling.build_ledger(record), record.cadence
    if costs is None:
        return Reading(None, "neither evaluation nor saving was timed")
    if ledger is None:
        return Reading(None, f"the step has no time: {scaling.find_obstacle(record)}")
    for reading in (costs.evaluation_seconds, costs.saving_seconds):
        if reading.value is None:
            return reading
    per_step = (costs.evaluation_seconds.value or 0.0) / evaluate_every
    per_step += (costs.saving_seconds.value or 0.0) / save_every
    return Reading(per_step / (per_step + ledger.together.center))


def cadence_table(record: ScalingRecord) -> list[str]:
    costs = record.cadence
    if costs is None:
        return ["Neither evaluation nor saving was timed."]
    notes = Footnotes()
    rows = []
    for evaluate_every, save_every in CADENCES:
        share = cadence_share(record, evaluate_every, save_every)
        told = notes.missing(share.reason) if share.value is None else percent(share.value)
        rows.append([str(evaluate_every), str(save_every), told])
    headers = ("evaluate every", "save every", "share of wall time")
    text = (
        f"One evaluation of {costs.evaluated_samples} samples takes "
        f"{_seconds(costs.evaluation_seconds)}, one saving {_seconds(costs.saving_seconds)}. "
        "A larger evaluation set costs in proportion."
    )
    return [text, table(headers, rows), *(["\n".join(notes.lines())] if notes.lines() else [])]


def _seconds(reading: Reading) -> str:
    return f"an unknown time ({reading.reason})" if reading.value is None else _s(reading.value)


def _s(value: float) -> str:
    return f"{number(value, 3)} s"
