"""Which lines own the time of the host? The suspects of `script`, as a trace shows them."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from diagnose.measure.trace.events import FRAME_NAME, Events
from diagnose.measure.trace.host import Host
from diagnose.records.script import Growth, Phase, Site, Suspect
from diagnose.records.stats import FEWEST_FOR_INTERVAL, hodges_lehmann
from diagnose.records.trace import Inside

Place = tuple[int, Phase]
# Below this share of a step nothing is a suspect.
_SMALLEST_SHARE = 0.005
# Of a line's time, from which on its operators are too small to fill it.
_OVERHEAD_SHARE = 0.5


def find_suspects(
    events: Events, host: Host, steps: Sequence[float], unknown: Site
) -> tuple[Suspect, ...]:
    """Lines with their time per step, the largest first; `unknown` stands for no line."""
    count = len(steps)
    seconds: Counter[Place] = Counter()
    inside: Counter[Place] = Counter()
    for step, owners in host.seconds.items():
        for owner, each in owners.items():
            if step >= 0:
                place = owner.site, owner.phase
                seconds[place] += each / count  # type: ignore[assignment]
                if owner.doing not in ("python", "loader"):
                    inside[place] += each / count  # type: ignore[assignment]
    backward = _backward(seconds)
    joined = {site for site, _ in backward}
    trips: Counter[Place] = Counter()
    for (site, phase, _, module), number in host.repeats.items():
        # Where a trace names no modules, layers of a model cannot be told from a loop.
        if module >= 0 or phase not in ("forward", "backward") or not events.work:
            trips[site, phase] = max(trips[site, phase], number)
    for place, each in seconds.items() if not events.work else ():
        # Large operators take their time in one run of a line as in many.
        overhead = host.small_seconds[place] / count + each - inside[place]
        if place[1] != "input" and overhead < _OVERHEAD_SHARE * each:
            trips[place] = 0
    found = [
        Suspect(
            key=key_of(events, place),
            site=events.sites[place[0]] if place[0] >= 0 else unknown,
            phase=place[1],
            seconds=each,
            backward_seconds=backward.get(place, 0.0),
            operator_seconds=inside[place],
            launches=round(host.operators[place] / count),
            trips=round(trips[place] / count),
            syncs=round(host.reads[place] / count),
            copy_seconds=host.copy_seconds[place] / count,
        )
        for place, each in seconds.items()
        if not (place[1] == "backward" and place[0] in joined)
        and each + backward.get(place, 0.0) >= _SMALLEST_SHARE * sum(steps) / count
    ]
    return tuple(sorted(found, key=lambda each: -each.seconds - each.backward_seconds))


def find_inside(events: Events, host: Host, steps: int) -> dict[str, Inside]:
    """Of each suspect the function of a library that takes the most of its time in Python."""
    found: dict[str, Inside] = {}
    for (site, phase, name), seconds in host.libraries.most_common():
        text = events.names[name]
        parts = FRAME_NAME.fullmatch(text)
        told = f"{parts.group(1)}:{parts.group(2)} in {parts.group(3)}" if parts else text
        found.setdefault(key_of(events, (site, phase)), Inside(told, seconds / steps))
    return found


def _backward(seconds: Counter[Place]) -> Mapping[Place, float]:
    """The backward pass of a line belongs to where its forward pass took the most time."""
    forward: dict[int, Place] = {}
    for place in sorted(seconds, key=seconds.__getitem__):
        if place[1] != "backward":
            forward[place[0]] = place
    return {
        forward[site]: each
        for (site, phase), each in seconds.items()
        if phase == "backward" and site in forward and site >= 0
    }


def key_of(events: Events, place: Place) -> str:
    site, phase = place
    if site < 0:
        return phase
    where = events.sites[site]
    return f"{where.file}:{where.line}:{where.function}:{phase}"


def find_growth(events: Events, host: Host, steps: Sequence[float]) -> Growth | None:
    """The line that takes longer from step to step, where the steps do."""
    slope = find_slope(steps)
    if slope is None or slope[1] <= 0:
        return None
    rows: dict[Place, list[float]] = defaultdict(lambda: [0.0] * len(steps))
    for step, owners in host.seconds.items():
        for owner, seconds in owners.items():
            if step >= 0:
                rows[owner.site, owner.phase][step] += seconds
    slopes = {
        place: found
        for place, row in rows.items()
        if (found := find_slope(_beside(row, steps))) is not None
    }
    worst = max(slopes, key=lambda place: slopes[place][0], default=None)
    if worst is None or slopes[worst][1] <= 0 or worst[0] < 0:
        return None
    site = events.sites[worst[0]]
    return Growth(
        site=site,
        what=f"the time in {site.function}",
        holds_tensors=False,
        seconds_per_step=slopes[worst][0],
        seconds_low=slopes[worst][1],
        seconds_high=slopes[worst][2],
        bytes_per_step=0.0,
        suspect=key_of(events, worst),
    )


def _beside(row: Sequence[float], steps: Sequence[float]) -> list[float]:
    """Seconds, as if the rest of every step had taken the same: what slows all is no growth."""
    rests = [whole - part for part, whole in zip(row, steps, strict=True)]
    usual = statistics.median(rests)
    return [
        part * usual / rest if rest > 0 else part for part, rest in zip(row, rests, strict=True)
    ]


def find_slope(values: Sequence[float]) -> tuple[float, float, float] | None:
    """By which each value is larger than the one before, from pairs half of them apart."""
    half = len(values) // 2
    if half < FEWEST_FOR_INTERVAL:
        return None
    found = hodges_lehmann([(values[at + half] - values[at]) / half for at in range(half)])
    return (found.center, *found.ends) if found.ends is not None else None
