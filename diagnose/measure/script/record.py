"""What is written down of a run? Everything that was seen, as plain data."""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from diagnose.measure.lines.source import Place
from diagnose.measure.machine.describe import find_repository, read_commit
from diagnose.measure.script.plan import FEWEST_PLAIN, FEWEST_SAMPLED, MAPPED
from diagnose.measure.script.watch.activity import device_lines
from diagnose.measure.script.watch.boundary import FORWARDS_WITHOUT_OPTIMIZER, OPTIMIZER_STEP
from diagnose.measure.script.watch.ceilings import measure_ceilings
from diagnose.measure.script.watch.growth import HOOKS, Growing
from diagnose.measure.script.watch.seen import Picture
from diagnose.measure.script.watch.stacks import PERIOD_SECONDS
from diagnose.measure.script.watch.suspects import group_samples
from diagnose.measure.script.watch.work import StepWork
from diagnose.records.header import Header, Reading
from diagnose.records.script import (
    PHASES,
    Activity,
    Autocast,
    Growth,
    Mode,
    Options,
    RankTimes,
    ScriptRecord,
    Site,
    Suspect,
)
from diagnose.records.stats import FEWEST_FOR_INTERVAL, Interval, hodges_lehmann

# Resident memory moves by some pages in any process.
SMALLEST_GROWTH_BYTES = 64 * 1024
# Late against early time of the work that grows, beyond what everything else has changed by.
GROWN = 1.25
MOST_RATES = 60
# Of a step: below it, work that uses what grows does not explain that steps become slower.
SMALLEST_USE = 0.1


def build_record(
    picture: Picture,
    header: Header,
    script: Path,
    arguments: Sequence[str],
    missing: str,
    mode: Mode,
) -> ScriptRecord:
    seen, instruments = picture.seen, picture.instruments
    double_share, double_site = _double(picture)
    return ScriptRecord(
        header=header,
        script=script.name,
        boundary=instruments.boundary.kind or OPTIMIZER_STEP,
        steps=seen.steps,
        step_seconds=tuple(seen.timed),
        hook_seconds=statistics.median(seen.hook_seconds) if seen.hook_seconds else 0.0,
        phases={phase: picture.phases[phase] for phase in PHASES if picture.phases.get(phase)},
        sampled_steps=seen.early_steps + seen.late_steps,
        suspects=tuple(sorted(_suspects(picture), key=lambda each: -each.seconds)),
        windows=tuple(seen.windows),
        changes=tuple(seen.changes.values()),
        occasions=tuple(seen.occasions.values()),
        loaders=picture.loaders,
        double_share=double_share,
        double_site=double_site,
        flops=_flops(seen.works),
        growth=_growth(picture),
        ranks=(),
        ceilings=seen.ceilings,
        update_bytes=_update_bytes(instruments.boundary.optimizers),
        missing=missing,
        mode=mode,
        mapped=bool(seen.works),
        flops_by_precision=_flops_by_precision(seen.works),
        samples=_samples(picture),
        tokens=_tokens(seen.works),
        device_busy=seen.busy,
        device=_activity(picture),
        notes=tuple(picture.device_notes()),
        commit=read_commit(find_repository(script)),
        arguments=tuple(arguments),
        run_seconds=seen.ended - seen.began,
        slow_steps=tuple(instruments.notes.slow_steps()),
        prefixes=tuple(seen.prefixes),
        prefix_site=picture.site(seen.prefix_spot),
        autocast=_autocast(picture),
    )


def _activity(picture: Picture) -> Activity | None:
    activity = picture.seen.activity
    if activity is None:
        return None
    lines = device_lines(picture.seen.works, picture.sources)
    return replace(activity, lines=lines, retries=picture.seen.retries)


def with_ceilings(record: ScriptRecord, picture: Picture) -> ScriptRecord:
    """Measures them if nobody has yet; that takes time and memory of the device."""
    if record.ceilings is not None or not picture.seen.early_steps:
        return record
    return replace(record, ceilings=measure_ceilings(picture.instruments.device))


def own_times(picture: Picture, rank: int) -> RankTimes:
    """What this rank hands to rank 0."""
    return RankTimes(
        rank,
        picture.seen.typical_seconds,
        picture.phases.get("communication", 0.0),
        tuple(_suspects(picture)),
        tuple(picture.seen.windows),
    )


def why_incomplete(picture: Picture, options: Options, ended: str) -> str:
    """Why there is no verdict; empty where there is one, however little time it had."""
    seen = picture.seen
    if seen.fault:
        return f"this suite itself failed ({seen.fault}); please report it"
    if seen.plain or seen.stage == "done" or seen.failed:
        return ""
    if options.from_step >= seen.steps > 0:
        return f"{ended} after {seen.steps} steps; --from-step {options.from_step} was not reached"
    if seen.steps == 0:
        if picture.instruments.boundary.elsewhere:
            return f"{ended}; its steps run in a thread other than the main one: not watched"
        return (
            f"{ended} before the first step. A step is a call of optimizer.step(); without an "
            f"optimizer it is a call of backward() or of a model, after the first "
            f"{FORWARDS_WITHOUT_OPTIMIZER}. Mark other steps yourself: `import diagnose` and, at "
            "the end of each, `diagnose.step()`"
        )
    warmup = options.warmup
    return (
        f"{ended} after {seen.steps} steps, and the first {warmup} only warm up: the times include "
        f"that. With {warmup + FEWEST_PLAIN + FEWEST_SAMPLED + MAPPED} steps causes can be ranked"
    )


def _suspects(picture: Picture) -> list[Suspect]:
    return [suspect for _, suspect in picture.suspects]


def _update_bytes(optimizers: Iterable[torch.optim.Optimizer]) -> int:
    """Every parameter and state is read and written once, every gradient read."""
    total = 0
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                states = optimizer.state.get(parameter, {}).values()
                sizes = [each.nbytes for each in states if isinstance(each, torch.Tensor)]
                total += 3 * parameter.nbytes + 2 * sum(sizes)
    return total


def _flops(works: Sequence[StepWork]) -> int:
    total = sum(line.flops for step in works for line in step.lines.values())
    return round(total / len(works)) if works else 0


def _flops_by_precision(works: Sequence[StepWork]) -> dict[str, float]:
    total = Counter[str]()
    for step in works:
        total.update(step.flops)
    return {name: flops / len(works) for name, flops in total.most_common()}


def _samples(picture: Picture) -> Reading:
    """Rows that the model was given in mapped steps; where none was mapped, in sampled ones."""
    seen = picture.seen
    if seen.works:
        rows = statistics.fmean(step.rows for step in seen.works)
    else:
        rows = max(seen.rows.values(), default=0) / max(1, seen.early_steps)
    return Reading(rows) if rows else Reading(None, "no model was given a tensor with rows")


def _tokens(works: Sequence[StepWork]) -> Reading:
    if not works:
        return Reading(None, "no step was mapped")
    tokens = statistics.fmean(step.tokens for step in works)
    return (
        Reading(tokens) if tokens else Reading(None, "the model's first input is no token numbers")
    )


def _double(picture: Picture) -> tuple[float, Site | None]:
    """The share of the operators' time in double precision, and where that type comes from.

    From the line that converts in every step, else from where the model was converted, else
    from the line that computes most in it.
    """
    total = double = 0.0
    makers: dict[Place, float] = defaultdict(float)
    users: dict[Place, float] = defaultdict(float)
    for step in picture.seen.works:
        for place, line in step.lines.items():
            total += line.forward_seconds + line.backward_seconds
            double += line.double_seconds
            if place is not None and place.path and line.double_seconds:
                users[place] += line.double_seconds
                if line.makes_double:
                    makers[place] += line.double_seconds
    if not double:
        return 0.0, None
    if not makers and picture.instruments.origins.double_spot is not None:
        return double / total, picture.sources.site(picture.instruments.origins.double_spot)
    named = makers or users
    best = max(named, key=lambda place: named[place], default=None)
    return double / total, picture.sources.site_of(best) if best is not None else None


def _autocast(picture: Picture) -> Autocast | None:
    """On an accelerator the host's time in operators is not what they take."""
    works, entered = picture.seen.works, picture.seen.autocast
    lines = [line for step in works for line in step.lines.values()]
    total = sum(line.forward_seconds + line.backward_seconds for line in lines)
    if not entered or not total or not picture.instruments.device.is_cpu:
        return None
    casts, others = (sum(step.low_seconds[kind] for step in works) for kind in ("casts", "others"))
    site = picture.site(entered.most_common(1)[0][0])
    return Autocast(site, casts / total, others / total)


def _growth(picture: Picture) -> Growth | None:
    grown = picture.seen.grown
    if not grown:
        return None
    slope = _slope([(float(step), seconds) for step, seconds in picture.seen.all_plain])
    memory = _slope([(float(step), float(size)) for step, size in picture.seen.memory])
    able = _able_to_grow(picture, grown)
    slower = None
    if picture.seen.late_steps and picture.seen.early_steps:
        slower, slope = _grown_suspect(picture, able)
    elif slope.center:  # nothing was seen late enough to compare
        slower = _largest(picture, able)
    first = grown[0]
    filled = picture.sources.site_of(first.filler) if first.filler is not None else None
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


def _able_to_grow(picture: Picture, grown: Sequence[Growing]) -> list[str]:
    """Work that has to do with what grows: it uses its name, is the backward pass of a kept
    graph, or the model that has ever more hooks.
    """
    names = [name for each in grown for name in each.names]
    has_graph = any(each.holds_graph for each in grown)
    return [
        key
        for key, group in picture.groups.items()
        if (has_graph and key == "backward")
        or (HOOKS in names and group.phase == "forward")
        or any(map(group.mentions, names))
    ]


def _largest(picture: Picture, able: Sequence[str]) -> Suspect | None:
    """The most of what uses it, if it is much."""
    found = [each for _, each in picture.suspects if each.key in able]
    best = max(found, key=lambda each: each.seconds, default=None)
    worth = SMALLEST_USE * picture.seen.typical_seconds
    return best if best is not None and best.seconds >= worth else None


def _grown_suspect(picture: Picture, able: Sequence[str]) -> tuple[Suspect | None, Interval]:
    """The work that grows from the early to the late samples far more than all the rest, and by
    how many seconds from step to step.
    """
    seen, spine = picture.seen, picture.spine
    early, late = (
        {key: group.seconds / steps for key, group in group_samples(samples, spine).items()}
        for samples, steps in ((seen.early, seen.early_steps), (seen.late, seen.late_steps))
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
    grown = after - usual * before
    # Samples are counted: so far off are both sides together.
    error = 2 * math.hypot(
        math.sqrt(after * PERIOD_SECONDS / seen.late_steps),
        math.sqrt(before * PERIOD_SECONDS / seen.early_steps),
    )
    between = seen.late_at / seen.late_steps - seen.early_at / seen.early_steps
    if after < GROWN * usual * before or grown <= error or between <= 0:
        return None, Interval(0.0, 0.0, 0.0)
    rate = Interval(grown, grown - error, grown + error).map(lambda each: each / between)
    return next((each for _, each in picture.suspects if each.key == best), None), rate
