"""Is arithmetic done in a precision that this device is slow at?"""

from __future__ import annotations

from collections.abc import Iterator

from diagnose.analyze.script.claims import Claim
from diagnose.analyze.units import number
from diagnose.records.script import ScriptRecord
from diagnose.records.stats import Interval

ADVICE = (
    "use the precision that is fastest here: float32 instead of float64, and autocast "
    "only where it was seen to be faster"
)


def judge(record: ScriptRecord) -> Iterator[Claim]:
    ceilings = record.ceilings
    if not record.double_share or ceilings is None or not ceilings.flops_per_second:
        return
    # Twice the bytes, and as much more arithmetic as this device needs for it.
    ratio = max(2.0, ceilings.flops_per_second / max(1.0, ceilings.double_flops_per_second))
    computing = sum(record.phases.get(phase, 0.0) for phase in ("forward", "backward", "optimizer"))
    double = record.double_share * computing
    gain = double * (1 - 1 / ratio)
    yield Claim(
        "precision",
        record.double_site,
        Interval(gain, 0.8 * gain, 1.2 * gain),
        verified=False,
        evidence=(
            f"operators in float64 take {number(double * 1e3, 3)} ms per step; "
            f"float32 products are {number(ratio, 2)} times as fast here"
        ),
    )
