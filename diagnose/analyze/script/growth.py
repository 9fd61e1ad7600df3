"""Does a step become slower, or larger, because of what the script keeps?"""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from diagnose.analyze.script.claims import Claim
from diagnose.analyze.script.prefix import has_growing_prefix
from diagnose.analyze.units import number, scaled
from diagnose.records.script import ScriptRecord
from diagnose.records.stats import Interval

ADVICE = "keep numbers instead of tensors (.item(), .detach()), and bound what is kept"
# A thousand steps of it are a gigabyte.
HEAVY_GROWTH_BYTES = 1e6


def judge(record: ScriptRecord) -> Iterator[Claim]:
    """Only what has a name: a step that gets slower by itself may have a busy neighbour.

    The gain is the mean of what has been added over all steps so far; it goes on growing.
    """
    growth = record.growth
    # What is generated grows with every token, and is not kept beyond its end.
    if growth is None or growth.site is None or has_growing_prefix(record):
        return
    slower = next((each for each in record.suspects if each.key == growth.suspect), None)
    heavy = growth.holds_tensors and growth.bytes_per_step >= HEAVY_GROWTH_BYTES
    if slower is None and not heavy:
        return
    grows = [f"what the script keeps in {growth.what} grows"]
    if growth.seconds_per_step:
        grows.append(f"each step takes {number(growth.seconds_per_step * 1e6, 3)} µs longer")
        mean = statistics.fmean(record.step_seconds)
        steps = number(mean / growth.seconds_per_step, 2)
        grows.append(f"after {steps} more steps a step takes twice as long")
    if growth.bytes_per_step:
        grows.append(f"memory grows by {scaled(growth.bytes_per_step, 'B')} per step")
    # Without work that takes longer because of it, a slower step may have a busy neighbour.
    rates = (growth.seconds_per_step, growth.seconds_low, growth.seconds_high)
    per_step = rates if slower is not None else (0.0, 0.0, 0.0)
    yield Claim(
        "growth",
        growth.site,
        Interval(*(rate * record.steps / 2 for rate in per_step)),
        verified=False,
        evidence="; ".join(grows),
        suspect=slower,
        always=heavy,
    )
