"""How does a run get into somebody else's spreadsheet? One row per measurement, as CSV."""

from __future__ import annotations

from typing import Any

from diagnose.analyze import derive
from diagnose.records.header import Reading
from diagnose.records.run import Measurement, RunRecord
from diagnose.render.markdown import clean


def export(record: RunRecord) -> str:
    """SI units with the unit in the name; an empty cell has its reason in the last column."""
    import pandas as pd

    rows = [
        {"stage": stage.key, "status": stage.status, **_row(record, each)}
        for stage in record.stages
        for each in stage.measurements
    ]
    return str(pd.DataFrame(rows).to_csv(index=False, lineterminator="\n"))


def _row(record: RunRecord, each: Measurement) -> dict[str, Any]:
    readings: dict[str, Reading] = {
        "samples_per_second": derive.samples_per_second(each),
        "watts": derive.watts(each),
        "joules_per_sample": derive.joules_per_sample(each),
        "utilization": derive.utilization(each),
        "power_share": derive.power_share(each),
        "peak_bytes": each.peak_bytes,
        "attainable_share": derive.attainable_share(record, each),
    }
    seconds = derive.step_seconds(each)
    reasons = [f"{name}: {clean(read.reason)}" for name, read in readings.items() if read.reason]
    return {
        "measurement": _text(each.name),
        "role": each.role,
        "settings": _text(derive.describe_settings(each, each.settings)),
        "slots": len(each.timing.slot_seconds),
        "seconds": seconds.center,
        "seconds_low": seconds.low,
        "seconds_high": seconds.high,
        **{name: read.value for name, read in readings.items()},
        "reasons": _text("; ".join(reasons)),
    }


def _text(text: str) -> str:
    """A spreadsheet takes a cell that begins like a formula for one."""
    text = clean(text)
    return f"'{text}" if text[:1] in ("=", "+", "-", "@") else text
