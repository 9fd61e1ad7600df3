"""Which line got faster or slower?

Samples say how a step is divided; how long it takes, the windows say.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from diagnose.analyze.prove.speed import judge_speed
from diagnose.records.prove import AFTER, BEFORE, Edit, LineChange, ProveRecord, SideFacts, Speed
from diagnose.records.script import Suspect

# Of a step: what changes by less is not worth a line.
SMALLEST_CHANGE = 0.01


@dataclass(frozen=True)
class _Region:
    """Lines of both sides that are compared with each other."""

    file: str  # of the side before
    key: int  # the first line there, or below 0 the number of an edit


def find_changes(record: ProveRecord) -> list[LineChange]:
    """Regions whose time changed: those that explain the verdict, the largest change first."""
    speed = judge_speed(record)
    found: dict[_Region, dict[str, list[tuple[float, Suspect]]]] = {}
    moved = _find_moved(record)
    for side, facts, step_ms in (
        (BEFORE, record.before, speed.before_ms or 0.0),
        (AFTER, record.after, speed.after_ms or 0.0),
    ):
        sampled = _seconds(facts)
        whole = sum(seconds for seconds, _ in sampled)
        for seconds, suspect in sampled:
            region = moved.get(_Text.of(suspect)) or _place(record, side, suspect)
            sides = found.setdefault(region, {BEFORE: [], AFTER: []})
            sides[side].append((step_ms * seconds / whole, suspect))
    _join_branches(found)
    changes = [_change(region, sides, record.edits) for region, sides in found.items()]
    least = SMALLEST_CHANGE * (speed.before_ms or 0.0)
    worth = [each for each in changes if abs(each.saved_ms) > least]
    return sorted(worth, key=lambda each: (not explains(each, speed), -abs(each.saved_ms)))


def _join_branches(found: dict[_Region, dict[str, list[tuple[float, Suspect]]]]) -> None:
    """Lines that one side alone has, where the other goes another way through the function.

    What one way saves is what it takes less than the other, not all that it takes.
    """
    ways: dict[tuple[str, str], list[_Region]] = {}
    for region, sides in found.items():
        if region.key >= 0 and not (sides[BEFORE] and sides[AFTER]):
            (_, first), *_ = sides[BEFORE] or sides[AFTER]
            ways.setdefault((region.file, first.site.function), []).append(region)
    for regions in ways.values():
        if len({bool(found[each][BEFORE]) for each in regions}) == 2:
            whole = found[regions[0]]
            for each in regions[1:]:
                for side, sampled in found.pop(each).items():
                    whole[side] += sampled


class _Text(NamedTuple):
    """By which a line that was moved is known."""

    function: str
    code: str
    phase: str

    @staticmethod
    def of(suspect: Suspect) -> _Text:
        return _Text(suspect.site.function, suspect.site.code.strip(), suspect.phase)


def _find_moved(record: ProveRecord) -> dict[_Text, _Region]:
    """Lines that are on both sides once, but not at the same place: an edit moved them."""
    places: list[dict[_Text, _Region]] = []
    for side, facts in ((BEFORE, record.before), (AFTER, record.after)):
        counts = Counter(_Text.of(each) for each in facts.suspects)
        alone = [each for each in facts.suspects if counts[_Text.of(each)] == 1 and each.site.code]
        places.append({_Text.of(each): _place(record, side, each) for each in alone})
    before, after = places
    return {
        text: before[text] for text in before.keys() & after.keys() if before[text] != after[text]
    }


def _place(record: ProveRecord, side: str, suspect: Suspect) -> _Region:
    return _region(record.edits, side, suspect.site.file, suspect.site.line)


def explains(change: LineChange, speed: Speed) -> bool:
    """Whether it went the way of the whole; where that is not known, every one may."""
    ways = {"FASTER": change.saved_ms > 0, "SLOWER": change.saved_ms < 0}
    return ways.get(speed.verdict, True)


def _seconds(facts: SideFacts) -> list[tuple[float, Suspect]]:
    """The time of every suspect; what the backward pass of a line takes is the line's."""
    shared = sum(each.backward_seconds for each in facts.suspects)
    found = []
    for each in facts.suspects:
        seconds = each.seconds + each.backward_seconds
        if each.phase == "backward":
            seconds = max(0.0, each.seconds - shared)
        if seconds > 0.0:
            found.append((seconds, each))
    return found


def _region(edits: Iterable[Edit], side: str, file: str, line: int) -> _Region:
    moved, name = 0, file
    for index, edit in enumerate(edits):
        if side == BEFORE:
            if edit.before_file == file and edit.before_first <= line <= edit.before_last:
                return _Region(edit.before_file, -1 - index)
        elif edit.after_file == file:
            name = edit.before_file
            if edit.after_first <= line <= edit.after_last:
                return _Region(name, -1 - index)
            if edit.after_last < line:
                moved = edit.before_last - edit.after_last
    return _Region(name, line + moved)


def _change(
    region: _Region,
    sides: Mapping[str, Sequence[tuple[float, Suspect]]],
    edits: Sequence[Edit],
) -> LineChange:
    before, after = (sum(seconds for seconds, _ in sides[side]) for side in (BEFORE, AFTER))
    side = BEFORE if before >= after else AFTER
    _, hottest = max(sides[side], key=lambda each: each[0])
    site, edit = hottest.site, None
    if region.key < 0:
        chosen = edits[-1 - region.key]
        edit = (
            (chosen.before_first, chosen.before_last)
            if side == BEFORE
            else (chosen.after_first, chosen.after_last)
        )
    return LineChange(
        file=site.file,
        line=site.line,
        side=side,
        function=site.function,
        code=site.code,
        phase=hottest.phase,
        before_ms=before,
        after_ms=after,
        edited=edit is not None,
        edit=edit,
    )
