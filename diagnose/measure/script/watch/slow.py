"""Why do some steps take much longer than the others? What each sampled step was disturbed by."""

from __future__ import annotations

import resource
import statistics
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from diagnose.measure.script.watch.stacks import Stacks
from diagnose.records.script import SlowStep
from diagnose.records.stats import FEWEST_FOR_INTERVAL

# Times a usual step.
SLOW = 1.5
# Of all steps: where more are slow, they are no exceptions.
MOST_SLOW_SHARE = 0.3
MOST_NOTES, MOST_KEPT = 5000, 50


class _Note(NamedTuple):
    step: int
    seconds: float
    phases: Counter[str]
    faults: int
    switches: int


class StepNotes:
    """Seconds by phase, page faults and lost turns of the processor, step by step."""

    def __init__(self, stacks: Stacks) -> None:
        self._stacks = stacks
        self._notes: list[_Note] = []
        self._before: tuple[Counter[str], int, int] = (Counter(), 0, 0)

    def clear(self) -> None:
        """Steps become steps of another kind."""
        self._notes.clear()

    def begin(self) -> None:
        """At the end of a step: the next one is the first that counts."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        faults = used.ru_minflt + used.ru_majflt
        self._before = Counter(self._stacks.by_phase), faults, used.ru_nivcsw

    def note(self, step: int, seconds: float) -> None:
        phases, faults, switches = self._before
        self.begin()
        spent = Counter(self._before[0])
        spent.subtract(phases)
        if len(self._notes) < MOST_NOTES:
            more = self._before[1] - faults, self._before[2] - switches
            self._notes.append(_Note(step, seconds, spent, *more))

    def slow_steps(self) -> list[SlowStep]:
        """The slowest first; none where there are too few steps to say what is usual."""
        notes = self._notes
        if len(notes) < 2 * FEWEST_FOR_INTERVAL:
            return []
        usual = statistics.median(each.seconds for each in notes)
        slow = [each for each in notes if each.seconds > SLOW * usual]
        if len(slow) > MOST_SLOW_SHARE * len(notes):
            return []
        rest = [each for each in notes if each.seconds <= SLOW * usual]
        slow.sort(key=lambda each: -each.seconds)
        return [_explain(each, rest, usual) for each in slow[:MOST_KEPT]]


def _explain(note: _Note, rest: Sequence[_Note], usual: float) -> SlowStep:
    over = {
        phase: seconds - statistics.fmean(each.phases[phase] for each in rest)
        for phase, seconds in note.phases.items()
    }
    return SlowStep(
        step=note.step,
        seconds=note.seconds,
        usual_seconds=usual,
        over={phase: seconds for phase, seconds in over.items() if seconds > 0},
        page_faults=round(note.faults - statistics.fmean(each.faults for each in rest)),
        switches=round(note.switches - statistics.fmean(each.switches for each in rest)),
    )
