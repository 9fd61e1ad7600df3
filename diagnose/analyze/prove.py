"""Is the change faster, does it compute the same, and which line is it? A record in, a proof out.

What may differ is measured, not guessed: two runs of the side before (its own randomness), and one
whose weights were moved by one unit in the last place (how fast mere rounding grows).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from diagnose.analyze.units import number
from diagnose.records.prove import (
    AFTER,
    AGAIN,
    BEFORE,
    GRADIENT,
    LOSS,
    NUDGED,
    OUTPUT,
    PARAMETERS,
    SCHEMA,
    Edit,
    Equality,
    EqualityVerdict,
    EqualRun,
    LineChange,
    Proof,
    ProveRecord,
    SideFacts,
    Speed,
    blocks_of,
    find_batch_ratio,
)
from diagnose.records.script import PHASES, Suspect
from diagnose.records.sequential import CONFIDENCE, decide, passes_gate, ratio_interval
from diagnose.records.stats import Interval

# A sum in another order is wrong by some units in the last place, where a nudged weight is by one.
ROUNDING_FACTOR = 16.0
# Where two runs of the same script differ by more than this share, nothing can be told.
OPAQUE = 0.1
# Of a step: what changes by less is not worth a line.
SMALLEST_CHANGE = 0.01
MOST_LINES = 10


def prove(record: ProveRecord) -> Proof:
    speed, equality = judge_speed(record), judge_equality(record)
    lines = find_changes(record)
    return Proof(
        schema=SCHEMA,
        sentence=_sentence(record, speed, equality, lines),
        before=record.before.title,
        after=record.after.title,
        speed=speed,
        equality=equality,
        lines=tuple(lines[:MOST_LINES]),
        phases=_phases(record),
        memory_bytes=(record.before.memory_bytes, record.after.memory_bytes),
        joules_per_step=(record.before.joules_per_step, record.after.joules_per_step),
        commits=(record.before.commit, record.after.commit),
        notes=record.notes,
    )


def _sentence(
    record: ProveRecord, speed: Speed, equality: Equality, lines: Sequence[LineChange]
) -> str:
    if speed.ratio is None or speed.ratio_ci is None:
        said = f"{speed.verdict}: {speed.reason}"
    else:
        how = f"{number(speed.ratio, 4)}x [{', '.join(number(e, 4) for e in speed.ratio_ci)}]"
        said = f"{speed.verdict}: {record.after.title} runs at {how} the speed of "
        said += record.before.title
        if speed.verdict in ("FASTER", "SLOWER") and lines and _explains(lines[0], speed):
            said += f", mostly at {lines[0].file}:{lines[0].line}"
    return f"{said}; results: {equality.text}."


# --- the same results? ---


def judge_equality(record: ProveRecord) -> Equality:
    runs = {each.name: each for each in record.runs}
    if {BEFORE, AFTER} <= runs.keys() and runs[BEFORE].is_same(runs[AFTER]):
        what = next(iter(runs[BEFORE].values))
        return Equality("EQUAL", None, what, None, None, None, runs[BEFORE].steps)
    if not {BEFORE, AFTER, AGAIN, NUDGED} <= runs.keys() or any(r.failed for r in record.runs):
        broken = next((each for each in record.runs if each.failed), None)
        why = f"in the run {broken.name}, {broken.failed}" if broken else "not every run took place"
        return _cannot_tell(record.missing or why)
    before, after = runs[BEFORE], runs[AFTER]
    ratio = find_batch_ratio(record.runs)
    if ratio != 1.0:
        return _cannot_tell(_at_equal_samples(before, after, ratio), before.steps)
    names = [name for name in (LOSS, GRADIENT, PARAMETERS, OUTPUT) if name in before.values]
    if before.shapes != after.shapes:
        names = [each for each in names if each != PARAMETERS]
    if not names or before.values.keys() != after.values.keys():
        return _cannot_tell("the sides have no value in common: no loss, gradient or output")
    checks = [_Check(name, runs) for name in names]
    verdict = _compare(checks, min(before.steps, after.steps))
    if verdict.step is None and before.steps != after.steps:
        fewer = BEFORE if before.steps < after.steps else AFTER
        step = min(before.steps, after.steps)
        reason = f"the side {fewer} ends after {step} steps, the other goes on"
        return replace(verdict, verdict="DIVERGES", step=step + 1, what="steps", reason=reason)
    if before.precision != after.precision:
        told = f"the model computes in {after.precision} instead of {before.precision}"
        return replace(verdict, reason="; ".join(filter(None, (told, verdict.reason))))
    return verdict


def _cannot_tell(reason: str, steps: int = 0) -> Equality:
    return Equality("CANNOT TELL", None, "", None, None, None, steps, reason)


def _at_equal_samples(before: EqualRun, after: EqualRun, ratio: float) -> str:
    """Steps of different sizes follow different paths; their losses are only told."""
    texts = [f"a step has {before.samples:g} samples before and {after.samples:g} after"]
    many, few = (before, after) if ratio < 1 else (after, before)
    times = round(max(ratio, 1 / ratio))
    losses = [each.values.get(LOSS, ()) for each in (many, few)]
    steps = min(len(losses[0]) // times, len(losses[1]))
    means = [
        statistics.fmean(filter(None, values[: steps * size]))
        for values, size in zip(losses, (times, 1), strict=True)
        if steps and any(values)
    ]
    if len(means) == 2:
        shown = means if many is before else means[::-1]
        samples = f"{steps * few.samples:g}"
        texts.append(
            f"over the first {samples} samples the mean loss is {number(shown[0], 6)} before and "
            f"{number(shown[1], 6)} after"
        )
    return "; ".join(texts)


class _Check:
    """One quantity in all runs, step by step."""

    def __init__(self, name: str, runs: Mapping[str, EqualRun]) -> None:
        self.name = name
        self.before, self.after, self.again, self.nudged = (
            runs[each].values.get(name, ()) for each in (BEFORE, AFTER, AGAIN, NUDGED)
        )
        self._epsilon = max(runs[each].epsilon for each in (BEFORE, AFTER))
        self._scale = self._size = 0.0

    def has(self, step: int) -> bool:
        return step < min(map(len, (self.before, self.after, self.again, self.nudged)))

    def judge(self, step: int) -> tuple[float, float] | None:
        """How far the sides are apart and may be; None where the scale says nothing any more."""
        values = [each[step] for each in (self.before, self.after, self.again, self.nudged)]
        before, after, again, nudged = (math.inf if each is None else each for each in values)
        if math.isinf(before) or math.isinf(again) or math.isinf(nudged):
            return None if not math.isinf(after) or before != again else (0.0, 0.0)
        self._size = max(self._size, abs(before))
        self._scale = max(self._scale, abs(before - again), abs(before - nudged))
        if self._scale > OPAQUE * self._size:
            return None
        allowed = ROUNDING_FACTOR * max(self._scale, self._epsilon * self._size)
        return abs(before - after), allowed


def _compare(checks: Sequence[_Check], steps: int) -> Equality:
    exact, compared = True, 0
    open_checks = list(checks)
    for step in range(steps):
        for check in list(open_checks):
            found = check.judge(step) if check.has(step) else None
            if found is None:
                open_checks.remove(check)
                continue
            apart, allowed = found
            exact &= apart == 0.0
            if apart > allowed:
                values = check.before[step], check.after[step]
                return Equality("DIVERGES", step + 1, check.name, *values, allowed, step + 1)
        if not open_checks:
            break
        compared = step + 1
    if not compared:
        return _cannot_tell("two runs of the side before differ from the first step on")
    reason = ""
    if compared < steps:
        reason = f"from step {compared + 1} on, two runs of the side before differ as much"
    verdict: EqualityVerdict = "EQUAL" if exact else "EQUAL WITHIN ROUNDING"
    return Equality(verdict, None, checks[0].name, None, None, None, compared, reason)


# --- faster? ---


def judge_speed(record: ProveRecord) -> Speed:
    ratio = find_batch_ratio(record.runs)
    blocks = blocks_of(record.windows, ratio)
    per = "step" if ratio == 1.0 else "sample"
    if not blocks:
        why = record.missing or "nothing was timed"
        return Speed("INCONCLUSIVE", None, None, CONFIDENCE, per, None, None, 0, None, why)
    interval = ratio_interval(blocks)
    verdict = decide(interval)
    before = statistics.median([each for block in blocks for each in block[:2]])
    after = statistics.median(block.after for block in blocks)
    samples = next((each.samples for each in record.runs if each.name == BEFORE), 0.0)
    reason = record.missing
    if verdict == "INCONCLUSIVE" and not reason:
        reason = (
            f"{len(blocks)} blocks are too few for an interval; allow more --seconds"
            if interval.ends is None
            else "the interval is too wide to tell; allow more --seconds or a quieter machine"
        )
    return Speed(
        verdict=verdict,
        ratio=interval.center,
        ratio_ci=interval.ends,
        confidence=CONFIDENCE,
        per=per,
        before_ms=1e3 * before,
        after_ms=1e3 * after,
        blocks=len(blocks),
        control=statistics.median(block.before / block.again for block in blocks),
        reason=reason,
        samples_per_second=(samples / before, samples / after) if samples else None,
    )


def gate(record: ProveRecord, slower: float | None, *, diverges: bool) -> bool | None:
    """Whether the change passes what was asked of it; None where that is not proven."""
    found: list[bool | None] = []
    if slower is not None:
        speed = judge_speed(record)
        interval = Interval(speed.ratio or 1.0, *(speed.ratio_ci or (None, None)))
        found.append(passes_gate(interval, slower))
    if diverges:
        verdict = judge_equality(record).verdict
        found.append(None if verdict == "CANNOT TELL" else verdict != "DIVERGES")
    return False if False in found else None if None in found else True


# --- which line? ---
# Samples say how a step is divided; how long it takes, the windows say.


@dataclass(frozen=True)
class _Region:
    """Lines of both sides that are compared with each other."""

    file: str  # of the side before
    key: int  # the first line there, or below 0 the number of an edit


def find_changes(record: ProveRecord) -> list[LineChange]:
    """Regions whose time changed: those that explain the verdict, the largest change first."""
    speed = judge_speed(record)
    found: dict[_Region, dict[str, list[tuple[float, Suspect]]]] = {}
    for side, facts, step_ms in (
        (BEFORE, record.before, speed.before_ms or 0.0),
        (AFTER, record.after, speed.after_ms or 0.0),
    ):
        sampled = _seconds(facts)
        whole = sum(seconds for seconds, _ in sampled)
        for seconds, suspect in sampled:
            region = _region(record.edits, side, suspect.site.file, suspect.site.line)
            sides = found.setdefault(region, {BEFORE: [], AFTER: []})
            sides[side].append((step_ms * seconds / whole, suspect))
    changes = [_change(region, sides, record.edits) for region, sides in found.items()]
    least = SMALLEST_CHANGE * (speed.before_ms or 0.0)
    worth = [each for each in changes if abs(each.saved_ms) > least]
    return sorted(worth, key=lambda each: (not _explains(each, speed), -abs(each.saved_ms)))


def _explains(change: LineChange, speed: Speed) -> bool:
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


def _phases(record: ProveRecord) -> dict[str, tuple[float, float]]:
    speed = judge_speed(record)
    shares = [
        {
            name: (step_ms or 0.0) * seconds / sum(facts.phases.values())
            for name, seconds in facts.phases.items()
        }
        for facts, step_ms in ((record.before, speed.before_ms), (record.after, speed.after_ms))
    ]
    return {
        name: (shares[0].get(name, 0.0), shares[1].get(name, 0.0))
        for name in PHASES
        if any(name in side for side in shares)
    }
