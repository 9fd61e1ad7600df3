"""What do the lines that were seen suffer from? The cause of each, and its gain as an estimate.

No rule knows a name of the script's: only where the time passes, what the operators there do,
and what their results are used for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from diagnose.analyze.script.claims import Claim, bounds
from diagnose.analyze.units import number, scaled
from diagnose.records.script import Cause, ScriptRecord, Site, Suspect
from diagnose.records.stats import Interval

# Runs of one line in a step; fewer are layers of a model, not elements of a tensor.
FEWEST_TRIPS = 16
# Of a line's time: so much is overhead where its operators are small.
OVERHEAD_SHARE = 0.5
# Of a group's time outside operators, from which on it is Python's.
HOST_SHARE = 0.5
# Of the operators' time that only changes type or layout.
COPY_SHARE = 0.4
# Of the operators that read a value back.
SYNC_SHARE = 0.2
# A thousand steps of it are a gigabyte.
HEAVY_GROWTH_BYTES = 1e6
# Sampled seconds are a count: their error is about that of this many samples per second.
SAMPLES_PER_SECOND = 400.0


def judge_lines(record: ScriptRecord) -> Iterator[Claim]:
    growing = record.growth.suspect if record.growth is not None else ""
    claims = [judge_suspect(each, record) for each in record.suspects if each.key != growing]
    yield from _join([claim for claim in claims if claim is not None])


def judge_suspect(suspect: Suspect, record: ScriptRecord) -> Claim | None:
    """The cause of one group of lines, or None where it simply computes."""
    seconds = suspect.seconds + suspect.backward_seconds
    # A module's own Python code is not the script's to save.
    inside = suspect.torch_seconds if suspect.phase == "forward" else 0.0
    operators = max(suspect.operator_seconds, inside) + _fresh_seconds(suspect, record)
    operators = min(operators, suspect.seconds)
    python = 1 - operators / suspect.seconds if suspect.seconds else 0.0
    if suspect.phase == "evaluation":
        return _estimate("evaluation", suspect, seconds, record, "evaluation of the model")
    if suspect.phase in ("checkpoint", "logging"):
        return _estimate("host", suspect, seconds, record, f"{suspect.phase} in the step")
    if suspect.phase == "communication":
        return _estimate("communication", suspect, seconds, record, "waiting for other ranks")
    if suspect.phase == "input":
        return _estimate("input", suspect, seconds, record, "waiting for the loader")
    if suspect.phase == "backward":
        return None
    if suspect.phase == "optimizer" and suspect.trips < FEWEST_TRIPS:
        return None  # torch's own update, which is tried in another form
    if suspect.repeats:
        return _estimate(
            "recompute", suspect, seconds, record, "the same results in steps with other batches"
        )
    if (
        suspect.phase == "host"
        and suspect.copy_seconds >= COPY_SHARE * suspect.operator_seconds > 0
        and python < HOST_SHARE
    ):
        return _estimate(
            "transfer", suspect, seconds, record, "operators that only copy or convert"
        )
    if suspect.feeds:
        return _estimate("input", suspect, seconds, record, "making the model's input")
    if suspect.syncs >= FEWEST_TRIPS and suspect.syncs >= SYNC_SHARE * suspect.launches:
        return _estimate(
            "sync", suspect, seconds, record, f"{suspect.syncs} values read back per step"
        )
    if suspect.trips >= FEWEST_TRIPS and suspect.launches >= FEWEST_TRIPS:
        needed = _needed_seconds(suspect, record)
        wasted = seconds - max(needed, seconds / suspect.trips)
        if wasted >= OVERHEAD_SHARE * seconds:
            return _estimate(
                "optimizer" if suspect.phase == "optimizer" else "launch",
                suspect,
                wasted,
                record,
                f"{suspect.launches} operators per step, {suspect.trips} runs of the line",
            )
    if python >= HOST_SHARE and suspect.launches < FEWEST_TRIPS * 64:
        idle = seconds - operators
        return _estimate("host", suspect, idle, record, f"{suspect.phase} work without operators")
    return None


def _fresh_seconds(suspect: Suspect, record: ScriptRecord) -> float:
    """What its operators may take longer where the system gives them fresh memory.

    Whether it does depends on what lies beside it on the heap, and so on being watched.
    """
    rate = record.ceilings.fresh_bytes_per_second if record.ceilings is not None else 0.0
    return suspect.new_bytes / rate if rate else 0.0


def _needed_seconds(suspect: Suspect, record: ScriptRecord) -> float:
    """What the arithmetic and the bytes alone would take at this device's best."""
    ceilings = record.ceilings
    if ceilings is None or not ceilings.flops_per_second or not ceilings.bytes_per_second:
        return 0.0
    arithmetic = suspect.flops / ceilings.flops_per_second
    moved = suspect.moved_bytes
    if suspect.phase == "optimizer":
        # One pass over all tensors is enough, however many operators there are now.
        moved = min(moved, record.update_bytes)
    return max(arithmetic, moved / ceilings.bytes_per_second)


def _estimate(
    cause: Cause, suspect: Suspect, seconds: float, record: ScriptRecord, evidence: str
) -> Claim:
    samples = max(1.0, seconds * record.sampled_steps * SAMPLES_PER_SECOND)
    reach = 2 * seconds / samples**0.5
    return Claim(
        cause,
        suspect.site,
        Interval(seconds, max(0.0, seconds - reach), seconds + reach),
        verified=False,
        evidence=f"{evidence}, {number(seconds * 1e3, 3)} ms per step seen at this line",
        suspect=suspect,
    )


def judge_whole(record: ScriptRecord) -> Iterator[Claim]:
    yield from _double_precision(record)
    yield from _growth(record)


def _double_precision(record: ScriptRecord) -> Iterator[Claim]:
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


def _growth(record: ScriptRecord) -> Iterator[Claim]:
    """Only what has a name: a step that gets slower by itself may have a busy neighbour.

    The gain is the mean of what has been added over all steps so far; it goes on growing.
    """
    growth = record.growth
    if growth is None or growth.site is None:
        return
    slower = next((each for each in record.suspects if each.key == growth.suspect), None)
    heavy = growth.holds_tensors and growth.bytes_per_step >= HEAVY_GROWTH_BYTES
    if slower is None and not heavy:
        return
    grows = [f"{growth.what} grows"]
    if growth.seconds_per_step:
        grows.append(f"each step takes {number(growth.seconds_per_step * 1e6, 3)} µs longer")
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


def _join(claims: Sequence[Claim]) -> list[Claim]:
    """Estimates of the same cause in the same function are one: its lines belong together."""
    joined: dict[object, Claim] = {}
    for claim in claims:
        site = claim.site or Site("", 0, "")
        phase = claim.suspect.phase if claim.suspect is not None else ""
        key = (claim.cause, site.file, site.function, phase)
        earlier = joined.get(key)
        if earlier is None:
            joined[key] = claim
        else:
            larger = max(earlier, claim, key=lambda each: each.gain.center)
            joined[key] = replace(larger, gain=_add(earlier.gain, claim.gain))
    return list(joined.values())


def _add(one: Interval, other: Interval) -> Interval:
    low, high = (a + b for a, b in zip(bounds(one), bounds(other), strict=True))
    return Interval(one.center + other.center, low, high)
