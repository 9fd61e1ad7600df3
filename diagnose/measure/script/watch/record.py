"""What is written down of a run? Everything the observer saw, as plain data."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import torch

from diagnose.measure.lines.source import Place
from diagnose.measure.script.watch.boundary import OPTIMIZER_STEP
from diagnose.measure.script.watch.growth import HOOKS, Grown
from diagnose.measure.script.watch.observer import Observer
from diagnose.measure.script.watch.plan import fewest_steps
from diagnose.measure.script.watch.suspects import group_samples
from diagnose.records.script import PHASES, Growth, RankTimes, ScriptRecord, Site, Suspect
from diagnose.records.stats import FEWEST_FOR_INTERVAL, Interval, hodges_lehmann

# Resident memory moves by some pages in any process.
SMALLEST_GROWTH_BYTES = 64 * 1024
# Late against early time of the work that grows, beyond what everything else has changed by.
GROWN = 1.25
MOST_RATES = 60
# Of a step: below it, work that uses what grows does not explain that steps become slower.
SMALLEST_USE = 0.1


def build_record(
    observer: Observer, script: Path, ended: str, ranks: tuple[RankTimes, ...] = ()
) -> ScriptRecord:
    suspects = [suspect for _, suspect in observer.suspects()]
    double_share, double_site = _double(observer)
    return ScriptRecord(
        script=script.name,
        device=observer.device.kind,
        boundary=observer.boundary.kind or OPTIMIZER_STEP,
        steps=observer.steps,
        step_seconds=tuple(observer.plain),
        hook_seconds=statistics.median(observer.hook_seconds) if observer.hook_seconds else 0.0,
        phases=_phases(observer),
        # Lines of which no step was mapped cannot be judged, however often they were seen.
        sampled_steps=observer.early_steps + observer.late_steps if observer.map.steps else 0,
        suspects=tuple(sorted(suspects, key=lambda each: -each.seconds)),
        windows=tuple(observer.trials.windows),
        changes=tuple(observer.trials.changes),
        occasions=tuple(observer.trials.occasions),
        loaders=observer.loaders(),
        double_share=double_share,
        double_site=double_site,
        flops=_flops(observer),
        growth=_growth(observer),
        ranks=ranks,
        ceilings=observer.ceilings() if observer.early_steps else None,
        update_bytes=_update_bytes(observer),
        missing=_missing(observer, ended),
    )


def _update_bytes(observer: Observer) -> int:
    """Every parameter and state is read and written once, every gradient read."""
    total = 0
    for optimizer in observer.boundary.optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                states = optimizer.state.get(parameter, {}).values()
                sizes = [each.nbytes for each in states if isinstance(each, torch.Tensor)]
                total += 3 * parameter.nbytes + 2 * sum(sizes)
    return total


def _phases(observer: Observer) -> dict[str, float]:
    found: dict[str, float] = defaultdict(float)
    for group in observer.groups().values():
        found[group.phase] += group.seconds * observer.per_step()
    return {phase: found[phase] for phase in PHASES if found[phase]}


def _flops(observer: Observer) -> int:
    works = observer.map.steps
    total = sum(line.flops for step in works for line in step.lines.values())
    return round(total / len(works)) if works else 0


def _double(observer: Observer) -> tuple[float, Site | None]:
    """The share of the operators' time in double precision, and where that type comes from.

    From the line that converts in every step, else from where the model was converted, else
    from the line that computes most in it.
    """
    total = double = 0.0
    makers: dict[Place, float] = defaultdict(float)
    users: dict[Place, float] = defaultdict(float)
    for step in observer.map.steps:
        for place, line in step.lines.items():
            total += line.forward_seconds + line.backward_seconds
            double += line.double_seconds
            if place is not None and place.path and line.double_seconds:
                users[place] += line.double_seconds
                if line.makes_double:
                    makers[place] += line.double_seconds
    if not double:
        return 0.0, None
    if not makers and observer.origins.double_spot is not None:
        return double / total, observer.sources.site(observer.origins.double_spot)
    named = makers or users
    best = max(named, key=lambda place: named[place], default=None)
    return double / total, observer.sources.site_of(best) if best is not None else None


def _growth(observer: Observer) -> Growth | None:
    grown = observer.lengths.growing()
    if not grown:
        return None
    slope = _slope([(float(step), seconds) for step, seconds in observer.all_plain])
    memory = _slope([(float(step), float(size)) for step, size in observer.memory])
    able = _able_to_grow(observer, grown)
    slower = None
    if slope.center:
        slower = _grown_suspect(observer, able) or _largest(observer, able)
    first = grown[0]
    filled = observer.sources.site_of(first.filler) if first.filler is not None else None
    return Growth(
        site=slower.site if slower is not None else filled,
        what=first.name,
        holds_tensors=first.holds_tensors,
        seconds_per_step=slope.center,
        seconds_low=slope.low or 0.0,
        seconds_high=slope.high or 0.0,
        bytes_per_step=memory.center if memory.center > SMALLEST_GROWTH_BYTES else 0.0,
        suspect=slower.key if slower is not None else "",
    )


def _slope(points: list[tuple[float, float]]) -> Interval:
    """By how much the later half is above the earlier, per step; 0 if that is not certain."""
    half = len(points) // 2
    pairs = zip(points[:half], points[-half:], strict=True) if half else ()
    rates = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in pairs if b[0] > a[0]]
    # All pairs of some hundred rates would take longer than a step.
    rates = rates[:: 1 + len(rates) // MOST_RATES]
    interval = hodges_lehmann(rates) if len(rates) >= FEWEST_FOR_INTERVAL else None
    if interval is None or interval.low is None or interval.low <= 0:
        return Interval(0.0, 0.0, 0.0)
    return interval


def _able_to_grow(observer: Observer, grown: Sequence[Grown]) -> list[str]:
    """Work that has to do with what grows: it uses its name, is the backward pass of a kept
    graph, or the model that has ever more hooks.
    """
    names = [each.name.rpartition(".")[2] for each in grown]
    has_graph = any(each.holds_graph for each in grown)
    return [
        key
        for key, group in observer.groups().items()
        if (has_graph and key == "backward")
        or (HOOKS in names and group.phase == "forward")
        or any(map(group.mentions, names))
    ]


def _largest(observer: Observer, able: Sequence[str]) -> Suspect | None:
    """Where nothing was seen late enough to compare, the most of what uses it, if it is much."""
    found = [each for _, each in observer.suspects() if each.key in able]
    best = max(found, key=lambda each: each.seconds, default=None)
    worth = SMALLEST_USE * observer.typical_seconds()
    return best if best is not None and best.seconds >= worth else None


def _grown_suspect(observer: Observer, able: Sequence[str]) -> Suspect | None:
    """The work that grows from the early to the late samples far more than all the rest."""
    if not observer.late_steps or not observer.early_steps:
        return None
    spine = observer.spine()
    early, late = (
        {key: group.seconds / steps for key, group in group_samples(samples, spine).items()}
        for samples, steps in (
            (observer.early, observer.early_steps),
            (observer.late, observer.late_steps),
        )
    )
    best = max(
        (key for key in able if key in late),
        key=lambda key: late[key] - early.get(key, 0.0),
        default="",
    )
    before, after = early.get(best, 0.0), late.get(best, 0.0)
    rest_before, rest_after = sum(early.values()) - before, sum(late.values()) - after
    # A busy neighbour slows everything down; what grows does so alone.
    usual = max(1.0, rest_after / rest_before) if rest_before else 1.0
    if after < GROWN * usual * before:
        return None
    return next((each for _, each in observer.suspects() if each.key == best), None)


def _missing(observer: Observer, ended: str) -> str:
    if observer.fault:
        return f"this suite itself failed ({observer.fault}); please report it"
    if observer.stage == "done" or observer.failed:
        return ""
    needed = fewest_steps(observer.wanted) - observer.steps
    if observer.steps == 0:
        if observer.boundary.elsewhere:
            return (
                f"{ended}; its steps run in another thread than the main one, which is not watched"
            )
        return f"{ended} before any step: no optimiser stepped and no model was called often enough"
    if needed > 0:
        return f"{ended} after {observer.steps} steps; at least {needed} more are needed"
    missing = f"{ended} after {observer.steps} steps, during the pass '{observer.stage}'"
    if not observer.map.steps:
        missing += f"; --steps {observer.steps} would fit all passes into so many"
    return missing


def own_times(observer: Observer, rank: int) -> RankTimes:
    """What this rank tells rank 0."""
    return RankTimes(
        rank,
        observer.typical_seconds(),
        _phases(observer).get("communication", 0.0),
        tuple(suspect for _, suspect in observer.suspects()),
        tuple(observer.trials.windows),
    )
