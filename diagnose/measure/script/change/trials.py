"""What comes back when one suspected cause is removed? Windows of changed and unchanged steps.

A block has one window of every change and two without any, in random order: on a shared machine
only such neighbours can be compared, and the two unchanged ones say what chance can do.
"""

from __future__ import annotations

import random
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

from torch._C._autograd import _get_sequence_nr

from diagnose.measure.script.change.candidates import Candidates
from diagnose.measure.script.change.exchanges import why_untouchable
from diagnose.measure.script.change.halves import Halves
from diagnose.measure.script.change.stand_ins import Occasions
from diagnose.measure.script.change.updates import time_updates
from diagnose.measure.script.change.variant import Variant, unchanged
from diagnose.measure.script.plan import ENDING_SHARE, Round, Timetable
from diagnose.measure.script.watch.ceilings import measure_ceilings
from diagnose.measure.script.watch.clock import StepClock
from diagnose.measure.script.watch.seen import Instruments, Picture, Seen
from diagnose.measure.script.watch.stacks import Seconds
from diagnose.records.script import AGAIN, PLAIN, Window
from diagnose.records.stats import FEWEST_FOR_INTERVAL

SEED = 0
# Of what unchanged windows build for the backward pass: a changed one that differs by more did
# other work.
SAME_WORK = 0.02
# How likely a change may look stuck where the script varies by itself.
STUCK_BY_CHANCE = 0.05
# Whether a batch is too small is asked once everything that is safer has been.
FIRST_ROUND_OF_HALVES = 1
TOO_SLOW = (
    "steps of {step:.1f} s leave no time for trials within --seconds {given:g}, so every gain is "
    "estimated; --seconds {wanted:.0f} would do"
)


class Trials:
    """The last pass of every round: it changes the script."""

    def __init__(self, seen: Seen, instruments: Instruments, timetable: Timetable) -> None:
        self._seen = seen
        self._instruments = instruments
        self._patches = instruments.patches
        self._timetable = timetable
        self._trying: Variant | None = None
        self._occasions = Occasions(instruments.device)
        self._block = 0
        self._order = random.Random(SEED)
        # Of unchanged windows, per step: calls of the model to train it, nodes for the backward
        # pass, and rows that the model was given.
        self._usual: list[tuple[float, float]] = []
        self._usual_rows: list[float] = []
        self._work: dict[str, list[tuple[float, float]]] = defaultdict(list)  # of all variants
        self._rejected: set[str] = set()

    @property
    def doing(self) -> str:
        """What is being tried now, in the user's words."""
        return f"trying: {self._trying.what}" if self._trying is not None else ""

    def fail(self, reason: str) -> None:
        """The script failed; what was just being tried cannot be judged."""
        if self._trying is not None and self._trying.name not in (PLAIN, AGAIN):
            self._seen.changes[self._trying.name] = self._trying.describe(failed=reason)

    def run(self, of: Round) -> Iterator[None]:
        ranks = self._timetable.ranks
        if not of.number:
            self._seen.watched = ranks.decide(
                why_untouchable(), lambda whys: next(filter(None, whys), "")
            )
        if self._seen.watched or ranks.apart:
            return
        if self._seen.ceilings is None and of.number:  # it takes time that short scripts lack
            self._seen.ceilings = measure_ceilings(self._instruments.device)
        picture = Picture(self._seen, self._instruments)
        self._occasions.look_for(picture)
        self._occasions.share(ranks.decide(self._occasions.names, _named_by_all))
        with self._patches.part() as patches:
            patches.on_undo(lambda: self._seen.occasions.update(self._occasions.record()))
            self._occasions.install(patches)
            for _ in self._run_stages(picture, of):
                yield
                if self._occasions.leaves_out:
                    self._note_tried("evaluations, checkpoints or log lines were left out")
                self._occasions.end_step(self._seen.step_seconds)

    def _run_stages(self, picture: Picture, of: Round) -> Iterator[None]:
        candidates = Candidates(picture, self._timetable.ranks)
        on_copies = Halves(self._instruments.forwards, picture.sources)
        self._time_updates(picture)
        with self._patches.part() as recording:
            for each in (*candidates.recorders, on_copies):
                each.record(recording)
            yield
        sides, of = self._fit(candidates.removals(), of)
        if sides:
            yield from self._blocks(sides, of)
        if of.number >= FIRST_ROUND_OF_HALVES and not self._timetable.ranks.apart:
            halves = candidates.halved()
            if halves is not None:
                yield from self._blocks(halves, of)
            elif self._timetable.ranks.count == 1 and picture.is_mostly_overhead:
                self._time_halves(on_copies, picture)

    def _time_updates(self, picture: Picture) -> None:
        """On copies, so that the script's own optimizer stays as it is."""
        if self._timetable.ranks.count > 1 or not picture.is_worth("optimizer"):
            return
        boundary, windows = self._instruments.boundary, self._seen.windows
        with boundary.paused():
            for timed in time_updates(boundary.optimizers, self._instruments.device):
                site = picture.optimizer_site(timed.optimizer)
                self._seen.changes.update({e.variant: e for e in timed.changes(site)})
                windows += timed.windows(self._block)
        self._block += FEWEST_FOR_INTERVAL

    def _time_halves(self, halves: Halves, picture: Picture) -> None:
        with self._instruments.boundary.paused():
            timed = halves.time(picture, self._block)
        if timed is not None:
            change, windows = timed
            self._note_tried(change.what)
            self._seen.changes[change.variant] = change
            self._seen.windows += windows
            self._block += FEWEST_FOR_INTERVAL

    def _fit(self, variants: Sequence[Variant], of: Round) -> tuple[list[Variant], Round]:
        """As many as the time that is left allows, the most promising first.

        In the first round windows become shorter for it: all are to be tried once.
        """
        variants = [each for each in variants if each.name not in self._rejected]
        if not variants:
            return [], of
        settle, wanted = max(each.settle for each in variants), len(variants) + 2
        room = self._timetable.fitting_sides(of.window + settle)
        shortest = 2 if self._timetable.ranks.together else 1
        while not of.number and of.window > shortest and room < wanted:
            of = replace(of, window=max(shortest, of.window // 2))
            room = self._timetable.fitting_sides(of.window + settle)
        if room < 2:
            if not of.number and self._timetable.options.steps is None:
                per_side = of.window + settle
                step, given = self._seen.typical_seconds, self._timetable.options.seconds
                needed = given + 3 * FEWEST_FOR_INTERVAL * step * per_side
                self._seen.remarks.append(TOO_SLOW.format(step=step, given=given, wanted=needed))
            return [], of
        plain = [unchanged(PLAIN), unchanged(AGAIN)] if room > 2 else [unchanged(PLAIN)]
        return [*plain, *_with_references(variants, room - len(plain))], of

    def _blocks(self, sides: Sequence[Variant], of: Round) -> Iterator[None]:
        settle = 0
        sampling = self._patches.part()
        stacks, nobody = self._instruments.stacks, defaultdict[object, float](float)
        device = self._instruments.device
        stacks.switch_on(sampling, into=self._of(of))
        stacks.seconds = nobody  # type: ignore[assignment]
        for _ in range(FEWEST_FOR_INTERVAL):
            if self._timetable.is_late(1 - ENDING_SHARE) or self._timetable.ranks.apart:
                break
            turns = self._order.sample(list(sides), len(sides))
            if not self._usual:  # a changed window is held against what unchanged ones did
                turns.sort(key=lambda side: side.name != PLAIN)
            for side in turns:
                self._trying = side
                is_plain = side.name in (PLAIN, AGAIN)
                if not is_plain:
                    self._note_tried(side.what)
                    if side.wanted:  # else another one is held against it
                        self._note_change(side, sides)
                with self._patches.part() as changed:
                    side.begin(changed)
                    # What the window before has queued must be over; then the host gets ahead.
                    device.synchronize()
                    for _ in range(max(settle, side.settle, 0 if device.is_cpu else 1)):
                        yield
                    # Where the host waits for a device, its line says nothing about the work.
                    if is_plain and device.is_cpu:
                        stacks.seconds = self._of(of)
                    yield from self._time_window(side, of)
                    stacks.seconds = nobody  # type: ignore[assignment]
                self._trying, settle = None, side.settle
            self._block += 1
        sampling.undo()
        self._reject_other_work(sides)

    def _of(self, of: Round) -> Seconds:
        return self._seen.samples_of(of.number)

    def _note_change(self, side: Variant, sides: Sequence[Variant]) -> None:
        """In the order of the plan, not in that of the lots."""
        changes = self._seen.changes
        changes.setdefault(side.name, side.describe())
        for each in sides:
            if each.name in changes:
                changes[each.name] = changes.pop(each.name)

    def _note_tried(self, what: str) -> None:
        if what not in self._seen.tried:
            self._seen.tried.append(what)

    def _time_window(self, side: Variant, of: Round) -> Iterator[None]:
        seen, device, stacks = self._seen, self._instruments.device, self._instruments.stacks
        is_plain = side.name in (PLAIN, AGAIN)
        clock = StepClock(device)
        clock.begin()
        self._instruments.notes.begin()
        used = side.uses() if side.uses is not None else 0
        aside, total = stacks.aside_seconds, 0.0
        calls, nodes, rows = seen.training_calls, _get_sequence_nr(), seen.training_rows
        for _ in range(of.window):
            yield
            total += seen.step_seconds
            if is_plain and device.is_cpu:
                seen.all_plain.append((seen.steps, seen.step_seconds))
                seen.count_sampled(self._of(of))
                self._instruments.notes.note(seen.steps, seen.step_seconds)
        clock.note()
        total = sum(clock.read()) or total
        # Evaluation and files come in some windows only, and are judged by themselves.
        total -= min(stacks.aside_seconds - aside, 0.95 * total)
        work = (seen.training_calls - calls) / of.window, (_get_sequence_nr() - nodes) / of.window
        given = (seen.training_rows - rows) / of.window
        self._work[side.name].append(work)
        if is_plain:
            self._usual.append(work)
            self._usual_rows.append(given)
        elif not self._is_same_work(work, side):
            return  # what was changed steers the script: this was other work
        elif side.samples != 1.0 and not self._is_scaled(given, side.samples):
            return  # the model did not see the rows that it was to be given
        if side.uses is not None and side.uses() == used:
            return  # the script took another way in this window, so that nothing was changed
        seen.windows.append(Window(self._block, side.name, of.window, total))

    def _is_same_work(self, work: tuple[float, float], side: Variant) -> bool:
        calls, nodes = zip(*self._usual, strict=True) if self._usual else ((work[0],), (work[1],))
        least, most = min(nodes) - side.spares, max(nodes) - side.spares
        slack = SAME_WORK * max(nodes) + 1
        in_nodes = least - slack <= work[1] <= most + slack
        return bool(min(calls) <= work[0] <= max(calls) and in_nodes)

    def _reject_other_work(self, sides: Sequence[Variant]) -> None:
        """A short window may look like one of the unchanged ones; all together do not."""
        for side in sides:
            works = self._work[side.name]
            if side.name in (PLAIN, AGAIN) or len(works) < 2 or len(self._usual) < 2:
                continue
            for place, spares in ((0, 0.0), (1, side.spares)):
                usual, own = ([each[place] for each in e] for e in (self._usual, works))
                differ = abs(statistics.fmean(own) + spares - statistics.fmean(usual))
                chance = 2 * sum(statistics.stdev(e) / len(e) ** 0.5 for e in (usual, own))
                # What unchanged windows do now this way, now that way must vary here too.
                alike = max(Counter(usual).values()) / len(usual)
                stuck = len(set(own)) == 1 and alike ** len(own) < STUCK_BY_CHANCE
                if stuck or differ > SAME_WORK * max(usual) + chance:
                    self._rejected.add(side.name)
        kept = [each for each in self._seen.windows if each.variant not in self._rejected]
        self._seen.windows[:] = kept

    def _is_scaled(self, rows: float, samples: float) -> bool:
        least, most = (samples * each for each in (min(self._usual_rows), max(self._usual_rows)))
        return 0 < 0.8 * least <= rows <= 1.2 * most


def _with_references(variants: Sequence[Variant], room: int) -> list[Variant]:
    """The first so many; a change that is compared with another one takes that along."""
    by_name = {each.name: each for each in variants}
    chosen: dict[str, Variant] = {}
    for each in variants:
        pair = [each] if each.against == PLAIN else [by_name[each.against], each]
        if len(chosen | {e.name: e for e in pair}) <= max(1, room):
            chosen.update({e.name: e for e in pair})
    return list(chosen.values())


def _named_by_all(names: list[list[str]]) -> list[str]:
    return sorted(set.intersection(*map(set, names)))
