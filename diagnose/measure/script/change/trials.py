"""What comes back when one suspected cause is removed? Windows of changed and unchanged steps.

A block has one window of every change and two without any, in random order: on a shared machine
only such neighbours can be compared, and the two unchanged ones say what chance can do.
"""

from __future__ import annotations

import gc
import random
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from diagnose.measure.script.change.candidates import Candidates, Variant
from diagnose.measure.script.change.stand_ins import Occasions
from diagnose.measure.script.patches import Patches
from diagnose.measure.script.plan import (
    BATCH_SHARE,
    DOUBLED_SHARE,
    ENDING_SHARE,
    TRIED_SHARE,
    Timetable,
)
from diagnose.measure.script.watch.boundary import Forwards
from diagnose.measure.script.watch.ceilings import measure_ceilings
from diagnose.measure.script.watch.seen import Picture
from diagnose.records.script import AGAIN, PLAIN, Change, Site, Window

SEED = 0
# Joined batches and doubled lines come after all others, and are numbered apart from them.
FIRST_BATCH_BLOCK, FIRST_DOUBLED_BLOCK = 1000, 2000
ALONE, EXCHANGED_ONCE = "no exchange", "one exchange"


class Trials:
    """The last pass: it changes the script that this picture shows."""

    def __init__(self, picture: Picture, timetable: Timetable) -> None:
        self._picture = picture
        self._seen = picture.seen
        self._patches = picture.instruments.patches
        self._timetable = timetable
        self._trying: Variant | None = None
        self._occasions: Occasions | None = None

    def fail(self, reason: str, *, memory: bool) -> bool:
        """The script did not survive what is being tried, if anything is.

        Memory may be short in an unchanged window too: what was tried before has left its marks
        in the heap, and kept batches are still there.
        """
        if self._trying is None:
            return False
        if self._trying.name not in (PLAIN, AGAIN):
            self._seen.changes.append(self._trying.describe(failed=reason))
            return True
        if memory:
            what = "changes before this step had been undone, but left less memory free"
            change = Change("memory", "allocation", PLAIN, what, None, failed=reason)
            self._seen.changes.append(change)
        return memory or (self._occasions is not None and self._occasions.leaves_out)

    def run(self) -> Iterator[None]:
        if self._timetable.ranks > 1:
            # Whatever one rank leaves out, the others would wait for.
            per_step = self._seen.trained_calls_per_step
            site = self._picture.backward_site()
            forwards = self._picture.instruments.forwards
            yield from self._remove_causes(other_exchanges(forwards, per_step, site))
            return
        seen = {group.phase for group in self._picture.groups.values()}
        occasions = Occasions(self._picture.spine, self._seen.marks, seen)
        self._occasions = occasions
        patches = self._patches.part()
        patches.on_undo(lambda: self._seen.occasions.extend(occasions.record()))
        occasions.install(patches)
        for _ in self._run_alone():
            yield
            occasions.end_step(self._seen.step_seconds)
        patches.undo()

    def _run_alone(self) -> Iterator[None]:
        self._seen.ceilings = measure_ceilings(self._picture.instruments.device)
        candidates = Candidates(self._picture, self._seen.ceilings)
        recording = self._patches.part()
        for each in candidates.recorders:
            each.record(recording)
        yield
        recording.undo()
        yield from self._remove_causes(candidates.removals())
        yield from self._join_batches(candidates)
        # Doubling disturbs what the script counts, so nothing comes after it.
        yield from self._double_lines(candidates)

    def _remove_causes(self, variants: Sequence[Variant]) -> Iterator[None]:
        if not variants:
            return
        self._seen.changes += [each.describe() for each in variants]
        sides = [_unchanged(PLAIN), _unchanged(AGAIN), *variants]
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
        sides = [_unchanged(PLAIN), *doubled]
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
            if self._timetable.is_late(block - first, until):
                break
            for side in order.sample(list(sides), len(sides)):
                self._trying = side
                changed = self._patches.part()
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

    def _time_window(self, block: int, side: Variant) -> Iterator[None]:
        device, stacks = self._picture.instruments.device, self._picture.instruments.stacks
        device.synchronize()
        used = side.uses() if side.uses is not None else 0
        aside, total = stacks.aside_seconds, 0.0
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
        if side.uses is not None and side.uses() == used:
            return  # the script took another way in this window, so that nothing was changed
        steps = self._timetable.counts.window
        self._seen.windows.append(Window(block, side.name, steps, total))


def _unchanged(name: str) -> Variant:
    return Variant(name, "compute", "nothing", None, lambda patches: None)


def other_exchanges(forwards: Forwards, per_step: int, site: Site | None) -> list[Variant]:
    """Fewer exchanges of gradients: none at all, and only the last of a step that has several.

    Without any, what is left is every rank's own work. The ranks' parameters differ afterwards,
    so the run must end with these windows.
    """
    # By type: asking an object for its class may wake a deprecated one that warns.
    kind = DistributedDataParallel
    models = [each for each in gc.get_objects() if issubclass(type(each), kind)]
    if not models:
        return []

    def exchange(on: bool) -> None:
        for model in models:
            model.require_backward_grad_sync = on

    def exchange_never(patches: Patches) -> None:
        exchange(False)
        patches.on_undo(partial(exchange, True))

    def exchange_once(patches: Patches) -> None:
        calls = 0

        def before(module: torch.nn.Module, args: Any, kwargs: Any) -> None:
            nonlocal calls
            if module in models and torch.is_grad_enabled():
                calls += 1
                exchange(calls % per_step == 0)

        patches.on_undo(partial(exchange, True))
        forwards.listen(patches, before=before)

    alone = Variant(
        name=ALONE,
        cause="communication",
        what="gradients were not exchanged",
        site=site,
        begin=exchange_never,
    )
    if per_step < 2:
        return [alone]
    what = f"gradients were exchanged once per step instead of {per_step} times"
    return [alone, replace(alone, name=EXCHANGED_ONCE, what=what, begin=exchange_once)]
