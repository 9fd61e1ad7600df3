"""What comes back when one suspected cause is removed? Windows of changed and unchanged steps.

A block has one window of every change and two without any, in random order: on a shared machine
only such neighbours can be compared, and the two unchanged ones say what chance can do.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence

from diagnose.measure.script.change.candidates import Candidates
from diagnose.measure.script.change.exchanges import why_untouchable
from diagnose.measure.script.change.stand_ins import Occasions
from diagnose.measure.script.change.variant import Variant, unchanged
from diagnose.measure.script.plan import (
    BATCH_SHARE,
    DOUBLED_SHARE,
    ENDING_SHARE,
    TRIED_SHARE,
    Timetable,
)
from diagnose.measure.script.watch.ceilings import measure_ceilings
from diagnose.measure.script.watch.seen import Picture
from diagnose.records.script import AGAIN, PLAIN, Window

SEED = 0
# Joined batches and doubled lines come after all others, and are numbered apart from them.
FIRST_BATCH_BLOCK, FIRST_DOUBLED_BLOCK = 1000, 2000


class Trials:
    """The last pass: it changes the script that this picture shows."""

    def __init__(self, picture: Picture, timetable: Timetable) -> None:
        self._picture = picture
        self._seen = picture.seen
        self._patches = picture.instruments.patches
        self._timetable = timetable
        self._trying: Variant | None = None
        self._called: list[int] = []  # how often unchanged windows called the model to train it

    def fail(self, reason: str) -> None:
        """The script failed; what was just being tried cannot be judged."""
        if self._trying is not None and self._trying.name not in (PLAIN, AGAIN):
            self._seen.changes.append(self._trying.describe(failed=reason))

    def run(self) -> Iterator[None]:
        ranks = self._timetable.ranks
        self._seen.watched = ranks.decide(
            why_untouchable(), lambda whys: next(filter(None, whys), "")
        )
        if self._seen.watched or ranks.apart:
            return
        seen = {group.phase for group in self._picture.groups.values()}
        occasions = Occasions(self._picture.spine, self._seen.marks, seen)
        occasions.share(ranks.decide(occasions.names, _named_by_all))
        patches = self._patches.part()
        patches.on_undo(lambda: self._seen.occasions.extend(occasions.record()))
        occasions.install(patches)
        for _ in self._run_stages():
            yield
            if occasions.leaves_out:
                self._note_tried("evaluations, checkpoints or log lines were left out")
            occasions.end_step(self._seen.step_seconds)
        patches.undo()

    def _run_stages(self) -> Iterator[None]:
        self._seen.ceilings = measure_ceilings(self._picture.instruments.device)
        candidates = Candidates(self._picture, self._timetable.ranks)
        recording = self._patches.part()
        for each in candidates.recorders:
            each.record(recording)
        yield
        recording.undo()
        # Doubling disturbs what the script counts, so nothing comes after it.
        for stage in (self._remove_causes, self._join_batches, self._double_lines):
            if not self._timetable.ranks.apart:
                yield from stage(candidates)

    def _remove_causes(self, candidates: Candidates) -> Iterator[None]:
        variants = candidates.removals()
        if not variants:
            return
        self._seen.changes += [each.describe() for each in variants]
        sides = [unchanged(PLAIN), unchanged(AGAIN), *variants]
        until = 1 - ENDING_SHARE - DOUBLED_SHARE - BATCH_SHARE
        yield from self._blocks(sides, 0, TRIED_SHARE, until)

    def _join_batches(self, candidates: Candidates) -> Iterator[None]:
        sides = candidates.joined()
        if sides is None:
            return
        self._seen.changes.append(sides[0].describe())
        until = 1 - ENDING_SHARE - DOUBLED_SHARE
        yield from self._blocks(sides, FIRST_BATCH_BLOCK, BATCH_SHARE, until)

    def _double_lines(self, candidates: Candidates) -> Iterator[None]:
        doubled = candidates.doubled()
        if not doubled:
            return
        sides = [unchanged(PLAIN), *doubled]
        yield from self._blocks(sides, FIRST_DOUBLED_BLOCK, DOUBLED_SHARE, 1 - ENDING_SHARE)
        # Whether the second run had as much to do as the first is only known afterwards.
        self._seen.changes += [
            variant.describe() for variant, doubling in doubled.items() if not doubling.refused
        ]

    def _blocks(
        self, sides: Sequence[Variant], first: int, share: float, until: float
    ) -> Iterator[None]:
        """As many as this share of the time allows, and none after this part of it has passed."""
        window = self._timetable.counts.window
        steps = sum(each.samples * window + each.settle for each in sides)
        blocks = self._timetable.plan_blocks(self._seen.typical_seconds, steps, share)
        order = random.Random(SEED)
        settle = 0
        sampling = self._patches.part()
        stacks = self._picture.instruments.stacks
        stacks.switch_on(sampling, into=defaultdict(float))
        of_nobody = stacks.seconds
        for block in range(first, first + blocks):
            if self._timetable.is_late(block - first, until) or self._timetable.ranks.apart:
                break
            turns = order.sample(list(sides), len(sides))
            if not self._called:  # a changed window is held against what unchanged ones did
                turns.sort(key=lambda side: side.name != PLAIN)
            for side in turns:
                self._trying = side
                changed = self._patches.part()
                if side.name not in (PLAIN, AGAIN):
                    self._note_tried(side.what)
                side.begin(changed)
                for _ in range(max(settle, side.settle)):
                    yield
                is_plain = side.name in (PLAIN, AGAIN)
                stacks.seconds = self._seen.late if is_plain else of_nobody
                yield from self._time_window(block, side)
                self._seen.late_steps += window if is_plain else 0
                stacks.seconds = of_nobody
                changed.undo()
                self._trying, settle = None, side.settle
        sampling.undo()

    def _note_tried(self, what: str) -> None:
        if what not in self._seen.tried:
            self._seen.tried.append(what)

    def _time_window(self, block: int, side: Variant) -> Iterator[None]:
        device, stacks = self._picture.instruments.device, self._picture.instruments.stacks
        device.synchronize()
        used = side.uses() if side.uses is not None else 0
        aside, total, called = stacks.aside_seconds, 0.0, self._seen.training_calls
        for _ in range(self._timetable.counts.window):
            yield
            total += self._seen.step_seconds
            if side.name in (PLAIN, AGAIN):
                self._seen.all_plain.append((self._seen.steps, self._seen.step_seconds))
                self._seen.sampled_seconds += self._seen.step_seconds
        waited = time.perf_counter()
        device.synchronize()
        total += time.perf_counter() - waited
        # Evaluation and files come in some windows only, and are judged by themselves.
        total -= min(stacks.aside_seconds - aside, 0.95 * total)
        called = self._seen.training_calls - called
        if side.name in (PLAIN, AGAIN):
            self._called.append(called)
        elif self._called and not min(self._called) <= called <= max(self._called):
            return  # what was changed steers the script: this was other work
        if side.uses is not None and side.uses() == used:
            return  # the script took another way in this window, so that nothing was changed
        steps = self._timetable.counts.window
        self._seen.windows.append(Window(block, side.name, steps, total))


def _named_by_all(names: list[list[str]]) -> list[str]:
    return sorted(set.intersection(*map(set, names)))
