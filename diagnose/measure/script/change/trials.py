"""What comes back when one suspected cause is removed? Windows of changed and unchanged steps.

A block has one window of every change and two without any, in random order: on a shared machine
only such neighbours can be compared, and the two unchanged ones say what chance can do.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from diagnose.measure.script.change.candidates import Candidates
from diagnose.measure.script.change.changes import Variant, other_exchanges
from diagnose.measure.script.change.occasions import Occasions
from diagnose.measure.script.watch.plan import (
    BATCH_SHARE,
    DOUBLED_SHARE,
    ENDING_SHARE,
    TRIED_SHARE,
    plan_blocks,
)
from diagnose.records.script import AGAIN, PLAIN, Change, Occasion, Window
from diagnose.records.stats import FEWEST_FOR_INTERVAL, FEWEST_FOR_ROBUST_INTERVAL

if TYPE_CHECKING:
    from diagnose.measure.script.watch.observer import Observer

SEED = 0
# Of the time, beyond what a pass was given: then its intervals need not be robust any more.
OVERTIME_SHARE = 0.05
# Joined batches and doubled lines come after all others, and are numbered apart from them.
FIRST_BATCH_BLOCK, FIRST_DOUBLED_BLOCK = 1000, 2000

Plan = Iterator[None]


class Trials:
    """The last pass of an observer."""

    def __init__(self, run: Observer) -> None:
        self.windows: list[Window] = []
        self.changes: list[Change] = []
        self._run = run
        self._trying: Variant | None = None
        self._occasions: Occasions | None = None

    @property
    def occasions(self) -> list[Occasion]:
        return self._occasions.record() if self._occasions is not None else []

    def fail(self, reason: str, *, memory: bool) -> bool:
        """The script did not survive what is being tried, if anything is.

        Memory may be short in an unchanged window too: what was tried before has left its marks
        in the heap, and kept batches are still there.
        """
        if self._trying is None:
            return False
        if self._trying.name not in (PLAIN, AGAIN):
            self.changes.append(_change(self._trying, failed=reason))
            return True
        if memory:
            what = "changes before this step had been undone, but left less memory free"
            self.changes.append(Change("memory", "allocation", PLAIN, what, None, failed=reason))
        return memory or (self._occasions is not None and self._occasions.leaves_out)

    def abandon(self) -> None:
        """Undo what is being tried, whatever state the run ended in."""
        if self._trying is not None:
            self._trying.end()
            self._trying = None
        if self._occasions is not None:
            self._occasions.remove()

    def run(self, ranks: int) -> Plan:
        if ranks > 1:
            # Whatever one rank leaves out, the others would wait for.
            yield from self._remove_causes(
                other_exchanges(
                    self._run.forwards, self._run.trained_calls_per_step, self._run.backward_site()
                )
            )
            return
        seen = {group.phase for group in self._run.groups().values()}
        self._occasions = Occasions(self._run.spine(), self._run.marks, seen)
        self._occasions.install()
        for _ in self._run_alone():
            yield
            self._occasions.end_step(self._run.step_seconds)
        self._occasions.remove()

    def _run_alone(self) -> Plan:
        candidates = Candidates(self._run)
        recorders = candidates.recorders
        self._run.installed += [each.remove for each in recorders]
        for each in recorders:
            each.record()
        yield
        for each in recorders:
            each.remove()
        yield from self._remove_causes(candidates.removals())
        yield from self._join_batches(candidates)
        # Doubling disturbs what the script counts, so nothing comes after it.
        yield from self._double_lines(candidates)

    def _remove_causes(self, variants: Sequence[Variant]) -> Plan:
        if not variants:
            return
        self.changes += [_change(each) for each in variants]
        sides = [_unchanged(PLAIN), _unchanged(AGAIN), *variants]
        until = 1 - ENDING_SHARE - DOUBLED_SHARE - BATCH_SHARE
        yield from self._blocks(sides, 0, TRIED_SHARE, until)

    def _join_batches(self, candidates: Candidates) -> Plan:
        sides = candidates.joined()
        if sides is None:
            return
        self.changes.append(_change(sides[0]))
        yield from self._blocks(
            sides, FIRST_BATCH_BLOCK, BATCH_SHARE, 1 - ENDING_SHARE - DOUBLED_SHARE
        )

    def _double_lines(self, candidates: Candidates) -> Plan:
        doubled = candidates.doubled()
        if not doubled:
            return
        sides = [_unchanged(PLAIN), *doubled]
        yield from self._blocks(sides, FIRST_DOUBLED_BLOCK, DOUBLED_SHARE, 1 - ENDING_SHARE)
        # Whether the second run had as much to do as the first is only known afterwards.
        self.changes += [
            _change(each) for each, doubling in doubled.items() if not doubling.refused
        ]

    def _blocks(self, sides: Sequence[Variant], first: int, share: float, until: float) -> Plan:
        """As many as this share of the time allows, and none after this part of it has passed."""
        steps = sum(each.samples * self._run.counts.window + each.settle for each in sides)
        planned = plan_blocks(self._run.wanted, self._run.typical_seconds(), round(steps), share)
        blocks = self._run.agree(planned)
        order = random.Random(SEED)
        settle = 0
        sampled = self._run.stacks.seconds
        self._run.stacks.switch_on()
        for block in range(first, first + blocks):
            if self._is_late(block - first, until):
                break
            for side in order.sample(list(sides), len(sides)):
                self._trying = side
                side.begin()
                for _ in range(max(settle, side.settle)):
                    yield
                is_plain = side.name in (PLAIN, AGAIN)
                self._run.stacks.seconds = self._run.late if is_plain else sampled
                yield from self._time_window(block, side)
                self._run.late_steps += self._run.counts.window if is_plain else 0
                self._run.stacks.seconds = sampled
                side.end()
                self._trying, settle = None, side.settle
        self._run.stacks.switch_off()

    def _is_late(self, blocks: int, until: float) -> bool:
        """Slow steps make few blocks; ranks must not decide this by their own clocks."""
        spent = (time.perf_counter() - self._run.began) / self._run.wanted.seconds
        in_time = spent < until + OVERTIME_SHARE
        enough = FEWEST_FOR_ROBUST_INTERVAL if in_time else FEWEST_FOR_INTERVAL
        return self._run.ranks == 1 and spent > until and blocks >= enough

    def _time_window(self, block: int, side: Variant) -> Plan:
        self._run.device.synchronize()
        used = side.uses() if side.uses is not None else 0
        aside, total = self._run.stacks.aside_seconds, 0.0
        for _ in range(self._run.counts.window):
            yield
            total += self._run.step_seconds
            if side.name in (PLAIN, AGAIN):
                self._run.all_plain.append((self._run.steps, self._run.step_seconds))
                self._run.sampled_seconds += self._run.step_seconds
        waited = time.perf_counter()
        self._run.device.synchronize()
        total += time.perf_counter() - waited
        # Evaluation and files come in some windows only, and are judged by themselves.
        total -= min(self._run.stacks.aside_seconds - aside, 0.95 * total)
        if side.uses is not None and side.uses() == used:
            return  # the script took another way in this window, so that nothing was changed
        self.windows.append(Window(block, side.name, self._run.counts.window, total))


def _unchanged(name: str) -> Variant:
    return Variant(name, "compute", "nothing", None, lambda: None, lambda: None)


def _change(variant: Variant, failed: str = "") -> Change:
    return Change(
        variant.name,
        variant.cause,
        variant.against,
        variant.what,
        variant.site,
        variant.samples,
        variant.doubles,
        failed,
    )
