"""What is tried next? The configurations, the guess, how far time allows, and what is timed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from diagnose.measure.batch_size.judge import MOST_SHARE
from diagnose.measure.batch_size.search import LARGEST_BATCH
from diagnose.measure.supervisor import Refused
from diagnose.sizes import Estimate, Probe, fit_memory, largest_fitting, smallest_failing

# One step that makes the optimiser's state, three timed ones, a forward pass.
STEPS_PER_PROBE = 5
# Below this growth a search that time cuts short is near enough to its end.
LEAST_GROWTH = 1.25
# Two points at neighbouring batches say little about the slope.
LEAST_SPAN = 3
AS_IT_IS = "as it is"
# The tiles of a 4:3 picture change at these caps only.
MAX_CROPS = (1, 2, 4, 6, 8, 12, 13)


@dataclass(frozen=True)
class Wanted:
    """What the user asked for."""

    base: int | None = None
    adjust: bool = True
    attempts: int | None = None
    sweep: tuple[int, ...] = ()
    max_crops: tuple[int, ...] = ()
    start_from: int | None = None
    probe_seconds: float | None = None


def plan_configurations(workload: str, settings: Mapping[str, object], wanted: Wanted) -> list[str]:
    """The keys of what is to be searched; max_crops is refused where it has no meaning."""
    if not wanted.max_crops and wanted.start_from is None:
        return [AS_IT_IS]
    if "max_crops" not in settings:
        raise Refused(
            f"workload {workload} has no max_crops: leave out --max-crops-list and "
            "--start-from-max-crops, or use a workload whose sizes name one"
        )
    caps = [
        cap
        for cap in wanted.max_crops or MAX_CROPS
        if wanted.start_from is None or cap >= wanted.start_from
    ]
    if not caps:
        raise Refused(
            f"no max_crops is left: --start-from-max-crops {wanted.start_from} is above all of "
            f"{', '.join(map(str, wanted.max_crops or MAX_CROPS))}"
        )
    return [f"max_crops {cap}" for cap in caps]


def guess(probes: Sequence[Probe], estimates: Sequence[Estimate]) -> int | None:
    """Where the memory line meets the limit; while it is uncertain, the rules may say more."""
    fitting = [probe for probe in probes if probe.fits]
    line = fit_memory(fitting)
    available = probes[-1].available_bytes.value
    guesses = []
    if line is not None and available is not None:
        guesses.append(line.largest_within(MOST_SHARE * available))
    batches = [probe.batch for probe in fitting]
    if estimates and (not guesses or max(batches) < LEAST_SPAN * min(batches)):
        guesses.append(estimates[0].high)
    return max(guesses, default=None)


def most_in_time(probes: Sequence[Probe], seconds: float) -> int:
    """The largest batch whose probe should end in time, at the best pace that was seen.

    A fixed cost per step makes small batches seem slow, so this grows with what was tried; and
    one disturbed probe does not end the search.
    """
    timed = [probe for probe in probes if probe.fits and probe.step_seconds]
    if not timed:
        return LARGEST_BATCH
    largest = max(probe.batch for probe in timed)
    per_sample = STEPS_PER_PROBE * min(min(each.step_seconds) / each.batch for each in timed)
    most = int(min(LARGEST_BATCH, seconds / max(per_sample, 1e-12)))
    failing = smallest_failing(probes)
    reaches = failing is not None and most >= failing - 1
    return most if reaches or most >= LEAST_GROWTH * largest else largest


def choose_confirmation(probes: Sequence[Probe]) -> int | None:
    """What a fresh process must still try: the answer, and what lies between if it refutes it."""
    largest, failing = largest_fitting(probes), smallest_failing(probes)
    if largest == 0:
        return None
    fresh = [probe for probe in probes if probe.fresh]
    if not any(probe.fits and probe.batch == largest for probe in fresh):
        return largest
    fitted = {probe.batch for probe in probes if probe.fits}
    refuted = any(not probe.fits and probe.batch in fitted for probe in fresh)
    if refuted and failing is not None and failing - largest > 1:
        return (largest + failing) // 2
    return None


def explain_stop(probes: Sequence[Probe], attempts: int | None, seconds: float) -> str:
    """Why the largest that fits may not be the largest there is; empty if it is."""
    largest, failing = largest_fitting(probes), smallest_failing(probes)
    if largest == 0 or failing == largest + 1:
        return ""
    if attempts is not None:
        return f"--max-attempts {attempts} was reached"
    if failing is None or most_in_time(probes, seconds) <= largest:
        return f"a larger batch was not tried: its probe would take over {seconds:g} s"
    return "a fresh process could not confirm a larger batch that had fitted before"


def choose_sweep(largest: int, asked: Sequence[int]) -> list[int]:
    """Smallest first: those asked for that fit, else doubling up to the largest."""
    if asked:
        fitting = sorted({batch for batch in asked if batch <= largest})
        return fitting or [largest]
    doubled = [2**power for power in range(largest.bit_length()) if 2**power < largest]
    return [*doubled, largest]
