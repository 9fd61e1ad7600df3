"""What is tried next? The configurations, the guess, how far time allows, and what is timed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf

from diagnose.measure.batch_size.search import LARGEST_BATCH, MOST_SHARE
from diagnose.measure.session import Refused
from diagnose.records.batch_size import (
    AS_IT_IS,
    REFUSED_BY_MEMORY,
    UNDER_DDP,
    Estimate,
    Probe,
    crops_factor,
    fit_memory,
    largest_fitting,
    smallest_failing,
)
from diagnose.records.stats import FEWEST_FOR_INTERVAL

# One step that makes the optimiser's state, three timed ones, a forward pass.
STEPS_PER_PROBE = 5
# Below this growth a search that time cuts short is near enough to its end.
LEAST_GROWTH = 1.25
# The sweep's steps may be a little slower than the fastest that a probe saw.
SWEEP_SLACK = 1.25
# Two points at neighbouring batches say little about the slope.
LEAST_SPAN = 3
# Fresh processes: where they go on contradicting the search, it ends without an exact answer.
MOST_FRESH = 8
# The tiles of a 4:3 picture change at these caps only.
MAX_CROPS = (1, 2, 4, 6, 8, 12, 13)

# Rules of thumb, from field reports about evaluating language and vision models. They are only a
# first guess: the report holds them against what was found.
GB = 1e9
BILLION = 1e9

# Memory from which a row holds, and the batch sizes that it recommends.
BY_MEMORY: Sequence[tuple[float, int, int]] = (
    (16 * GB, 8, 16),
    (12 * GB, 4, 8),
    (8 * GB, 2, 4),
    (0.0, 1, 2),
)
# Parameters up to which a row holds.
BY_PARAMETERS: Sequence[tuple[float, int, int]] = (
    (1 * BILLION, 8, 16),
    (7 * BILLION, 4, 8),
    (13 * BILLION, 2, 4),
    (float("inf"), 1, 2),
)


@dataclass(frozen=True)
class Patience:
    """How long a search may take where memory is ample for the speed of the device."""

    probe_seconds: float  # a longer one is not worth its answer
    search_seconds: float = inf  # of all probes together, while none of them has failed
    sweep_seconds: float = 1.0  # of the timed slots of all batch sizes together
    loader_seconds: float = 1.0  # of the loader's slots, with half as much before to warm up


# Quick: search, confirmation, sweep and loader of one configuration take less than a minute on
# two CPU cores. Smoke: its search is as exact as any, however busy the machine is.
PATIENCE: Mapping[str, Patience] = {
    "smoke": Patience(5),
    "quick": Patience(5, search_seconds=20, sweep_seconds=9, loader_seconds=5),
    "full": Patience(120, sweep_seconds=240, loader_seconds=240),
}


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
    memory_megabytes: int | None = None
    ddp: bool = False


def plan_configurations(workload: str, settings: Mapping[str, object], wanted: Wanted) -> list[str]:
    """The keys of what is to be searched; max_crops is refused where it has no meaning."""
    if not wanted.max_crops and wanted.start_from is None:
        return [AS_IT_IS, UNDER_DDP] if wanted.ddp else [AS_IT_IS]
    if "max_crops" not in settings:
        raise Refused(
            f"workload {workload} has no max_crops: leave out --max-crops-list and "
            "--start-from-max-crops, or use a workload whose sizes name one"
        )
    for before, after in pairwise(wanted.max_crops):
        if after <= before:
            raise Refused(
                f"--max-crops-list must increase, and {after} comes after {before}; "
                "list every cap once, the smallest first"
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


def list_estimates(
    memory_bytes: float | None, parameters: int, base: int | None, max_crops: int | None
) -> tuple[Estimate, ...]:
    """What each rule says, and first where to begin.

    That is the user's own base batch, who knows the job, else the smaller of the tables' rows;
    either with fewer samples where each has many tiles.
    """
    rules = []
    if memory_bytes is not None:
        _, low, high = next(row for row in BY_MEMORY if memory_bytes >= row[0])
        rules.append(Estimate(f"{memory_bytes / GB:.3g} GB of memory", low, high))
    _, low, high = next(row for row in BY_PARAMETERS if parameters < row[0])
    rules.append(Estimate(f"{parameters / BILLION:.3g} billion parameters", low, high))
    rules.sort(key=lambda rule: rule.high)
    begin = rules[0] if base is None else Estimate(f"base batch {base}", base, base)
    if max_crops is not None:
        begin = _scale(begin, max_crops)
    return (begin, *(rule for rule in rules if rule != begin))


def _scale(rule: Estimate, max_crops: int) -> Estimate:
    factor = crops_factor(max_crops)
    low, high = (max(1, int(batch * factor)) for batch in (rule.low, rule.high))
    return Estimate(f"{rule.source} at max_crops {max_crops}", low, high)


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


def find_ceiling(probes: Sequence[Probe], patience: Patience) -> int:
    """The largest batch whose probe should end in time, at the best rate that was seen.

    A fixed cost per step makes small batches seem slow, so this grows with what was tried; and
    one disturbed probe does not end the search.
    """
    fastest = _fastest_steps(probes)
    if not fastest:
        return LARGEST_BATCH
    largest = max(fastest)
    per_sample = STEPS_PER_PROBE * min(step / batch for batch, step in fastest.items())
    most = int(min(LARGEST_BATCH, allowed_seconds(probes, patience) / max(per_sample, 1e-12)))
    failing = smallest_failing(probes)
    reaches = failing is not None and most >= failing - 1
    if not reaches and most < LEAST_GROWTH * largest:
        most = largest
    # One probe alone may have been disturbed, so a second one has its say before time has.
    return max(most, 2) if len(probes) == 1 else most


def allowed_seconds(probes: Sequence[Probe], patience: Patience) -> float:
    """How long one more probe may take: never longer than what is left of the search.

    Once a batch has failed the answer is near, and no search is too long for being exact. The
    probes' own seconds count, because all ranks have the same of them.
    """
    if smallest_failing(probes) is not None:
        return patience.probe_seconds
    left = patience.search_seconds - sum(probe.seconds for probe in probes)
    return min(patience.probe_seconds, max(left, 0.0))


def _fastest_steps(probes: Sequence[Probe]) -> dict[int, float]:
    """By batch, in seconds; of those that fit."""
    found: dict[int, float] = {}
    for probe in probes:
        if probe.fits and probe.step_seconds:
            found[probe.batch] = min(found.get(probe.batch, inf), *probe.step_seconds)
    return found


def choose_confirmation(probes: Sequence[Probe]) -> int | None:
    """What a fresh process must still try: the answer, the batch above it that was refused where
    others had left their memory behind, and what lies between if it contradicts either."""
    largest, failing = largest_fitting(probes), smallest_failing(probes)
    if largest == 0:
        return None
    fresh = {probe.batch: probe.fits for probe in probes if probe.fresh}
    if not fresh.get(largest):
        return largest
    if failing == largest + 1:
        refused = [p for p in probes if p.batch == failing and p.status in REFUSED_BY_MEMORY]
        return failing if refused and failing not in fresh else None
    disagree = any(p.batch in fresh and p.fits != fresh[p.batch] for p in probes)
    if not disagree or len(fresh) >= MOST_FRESH:
        return None
    return largest + 1 if failing is None else (largest + failing) // 2


def explain_stop(
    probes: Sequence[Probe], searched: int, attempts: int | None, patience: Patience
) -> str:
    """Why the largest that fits may not be the largest there is; empty if it is.

    The first `searched` probes are the search, the others its confirmation.
    """
    largest, failing = largest_fitting(probes), smallest_failing(probes)
    if largest == 0 or failing == largest + 1:
        return ""
    if attempts is not None and searched >= attempts:
        return f"--max-attempts {attempts} was reached"
    made = probes[:searched]
    if failing is None or find_ceiling(made, patience) <= largest:
        if allowed_seconds(made, patience) < patience.probe_seconds:
            limit = (
                f"the search would take over {patience.search_seconds:.3g} s; --full takes longer"
            )
        else:
            limit = f"its probe would take over {patience.probe_seconds:.3g} s"
        return f"a larger batch was not tried: {limit}"
    return "a fresh process could not confirm a larger batch that had fitted before"


def choose_sweep(probes: Sequence[Probe], asked: Sequence[int], seconds: float) -> list[int]:
    """Smallest first: those asked for that fit, else doubling up to the largest.

    Where steps are long the factor grows instead, until all sizes can have an interval in time.
    """
    largest = largest_fitting(probes)
    if asked:
        fitting = sorted({batch for batch in asked if batch <= largest})
        return fitting or [largest]
    factor = 2
    while True:
        batches = _spread(largest, factor)
        if len(batches) <= 2 or needed_seconds(probes, batches) <= seconds:
            return batches
        factor *= 2


def _spread(largest: int, factor: int) -> list[int]:
    batches, batch = [], 1
    while batch < largest:
        batches.append(batch)
        batch *= factor
    return [*batches, largest]


def needed_seconds(probes: Sequence[Probe], batches: Sequence[int]) -> float:
    """Until every one of these sizes has as many slots as an interval takes."""
    fastest = _fastest_steps(probes)
    block = sum(_expect_seconds(fastest, batch) for batch in batches)
    return SWEEP_SLACK * FEWEST_FOR_INTERVAL * block


def _expect_seconds(fastest: Mapping[int, float], batch: int) -> float:
    """Of one step: on the straight line between the probes around it."""
    above = min(each for each in fastest if each >= batch)
    below = max((each for each in fastest if each <= batch), default=above)
    share = (batch - below) / (above - below) if above > below else 0.0
    return fastest[below] + share * (fastest[above] - fastest[below])
