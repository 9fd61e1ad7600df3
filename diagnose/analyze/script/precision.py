"""Is arithmetic done in a precision that this device is slow at?"""

from __future__ import annotations

from collections.abc import Iterator

from diagnose.analyze.script.claims import Claim
from diagnose.analyze.units import number
from diagnose.records.script import Autocast, Ceilings, ScriptRecord
from diagnose.records.stats import Interval

ADVICE = (
    "use the precision that is fastest here: float32 instead of float64, and autocast "
    "only where it was seen to be faster"
)
# Of an estimate: products of a step are not as large as those of the ceilings.
REACH = 0.2


def judge(record: ScriptRecord) -> Iterator[Claim]:
    ceilings = record.ceilings
    if ceilings is None or not ceilings.flops_per_second:
        return
    computing = sum(record.phases.get(phase, 0.0) for phase in ("forward", "backward", "optimizer"))
    if record.double_share:
        yield _in_double(record, ceilings, computing)
    if record.autocast is not None and ceilings.low_flops_per_second:
        yield _under_autocast(record.autocast, ceilings, computing)


def _in_double(record: ScriptRecord, ceilings: Ceilings, computing: float) -> Claim:
    # Twice the bytes, and as much more arithmetic as this device needs for it.
    ratio = max(2.0, ceilings.flops_per_second / max(1.0, ceilings.double_flops_per_second))
    double = record.double_share * computing
    gain = double * (1 - 1 / ratio)
    return Claim(
        "precision",
        record.double_site,
        Interval(gain, (1 - REACH) * gain, (1 + REACH) * gain),
        verified=False,
        evidence=(
            f"operators in float64 take {number(double * 1e3, 3)} ms per step; "
            f"float32 products are {number(ratio, 2)} times as fast here"
        ),
    )


def _under_autocast(autocast: Autocast, ceilings: Ceilings, computing: float) -> Claim:
    """Without it nothing is converted, and the rest takes what it takes in float32."""
    casts, others = (each * computing for each in (autocast.cast_share, autocast.low_share))
    ratio = ceilings.flops_per_second / ceilings.low_flops_per_second
    gain = casts + others * (1 - 1 / ratio)
    reach = REACH * (casts + abs(gain - casts))
    return Claim(
        "precision",
        autocast.site,
        Interval(gain, gain - reach, gain + reach),
        verified=False,
        evidence=(
            f"under autocast conversions take {number(casts * 1e3, 3)} ms per step and other "
            f"operators in {ceilings.low_precision} {number(others * 1e3, 3)} ms; "
            f"float32 products are {number(ratio, 2)} times as fast here"
        ),
    )
