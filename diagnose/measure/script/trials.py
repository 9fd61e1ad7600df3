"""What comes back when one suspected cause is removed? Windows of changed and unchanged steps.

A block has one window of every change and two without any, in random order: on a shared machine
only such neighbours can be compared, and the two unchanged ones say what chance can do.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from diagnose.findings import AGAIN, PLAIN, Change, Site, Suspect, Window
from diagnose.measure.script.changes import (
    REPLAY,
    Variant,
    kept_memory,
    low_precision,
    other_exchanges,
    other_optimizer,
    tensor_float,
)
from diagnose.measure.script.plan import BATCH_SHARE, plan_blocks
from diagnose.measure.script.replay import MOST_KEPT, Feed, KeptCopies, join
from diagnose.measure.script.suspects import Group
from diagnose.measure.script.swaps import Swap, can_be_replayed
from diagnose.stats import FEWEST_FOR_INTERVAL, FEWEST_FOR_ROBUST_INTERVAL

if TYPE_CHECKING:
    from diagnose.measure.script.observer import Observer

# What is below this share of a step is not worth a window of its own.
WORTH_TRYING = 0.02
MOST_SWAPS = 3
MOST_OPTIMIZERS = 2
SEED = 0
# Times the seconds that were allowed, after which an interval need not be robust any more.
MOST_OVERTIME = 1.3
# The blocks of joined batches come after all others, and are numbered apart from them.
FIRST_BATCH_BLOCK = 1000

Plan = Iterator[None]


class Trials:
    """The last pass of an observer."""

    def __init__(self, run: Observer) -> None:
        self.windows: list[Window] = []
        self.changes: list[Change] = []
        self._run = run
        self._trying: Variant | None = None

    def fail(self, reason: str) -> None:
        """The script did not survive what is being tried."""
        if self._trying is not None:
            self.changes.append(_change(self._trying, failed=reason))

    def abandon(self) -> None:
        """Undo what is being tried, whatever state the run ended in."""
        if self._trying is not None:
            self._trying.end()
            self._trying = None

    def run(self, ranks: int) -> Plan:
        if ranks > 1:
            variants = other_exchanges(
                self._run.forwards, self._run.trained_calls_per_step, self._run.backward_site()
            )
        else:
            variants, swaps = self._choose()
            yield from self._record(swaps)
            variants += [self._swapped(*each) for each in swaps if each[0].is_ready]
        if variants:
            yield from self._run_blocks(variants)
        if ranks == 1:
            yield from self._try_batch()

    def _choose(self) -> tuple[list[Variant], list[tuple[Swap, Suspect]]]:
        worth = WORTH_TRYING * self._run.typical_seconds()
        suspects = self._run.suspects()
        groups = self._run.groups()
        seconds = {
            phase: groups[phase].seconds * self._run.per_step()
            for phase in ("input", "optimizer")
            if phase in groups
        }
        variants: list[Variant | None] = []
        feeds = [each for each in self._run.training_feeds() if each.batches]
        self._run.feeds.choose(feeds)
        copies = sum(each.copy_seconds for _, each in suspects if each.phase == "host")
        if feeds and (seconds.get("input", 0.0) > worth or copies > worth):
            variants.append(self._replayed(feeds))
            if copies > worth:
                variants.append(self._kept(suspects))
        if seconds.get("optimizer", 0.0) > worth:
            largest = sorted(self._run.boundary.optimizers, key=_tensors_of, reverse=True)
            variants += [
                other_optimizer(each, self._run.optimizer_site(each))
                for each in largest[:MOST_OPTIMIZERS]
            ]
        if self._run.autocast_spots:
            variants.append(self._full_precision())
        else:
            rates = self._run.ceilings()
            gain = rates.low_flops_per_second / max(1.0, rates.flops_per_second)
            variants.append(low_precision(self._run.device, gain))
        variants.append(tensor_float(self._run.device))
        if self._run.device.is_cpu and self._largest_allocation() is not None:
            variants.append(kept_memory(self._largest_allocation()))
        functions = sorted(
            (
                (group, each)
                for group, each in suspects
                if group.code is not None and each.seconds > worth and can_be_replayed(group.code)
            ),
            key=lambda pair: -pair[1].seconds,
        )[:MOST_SWAPS]
        swaps = [(Swap(group.code), each) for group, each in functions if group.code is not None]
        return [each for each in variants if each is not None], swaps

    def _largest_allocation(self) -> Site | None:
        sizes = Counter[Any]()
        for step in self._run.map.steps:
            for place, line in step.lines.items():
                if place is not None and place.path:
                    sizes[place] += line.large_bytes
        best = max(sizes, key=lambda place: sizes[place], default=None)
        return self._run.sources.site_of(best) if best is not None and sizes[best] else None

    def _replayed(self, feeds: Sequence[Feed]) -> Variant:
        def mode(name: Any) -> Callable[[], None]:
            return lambda: setattr(self._run.feeds, "mode", name)

        site = next((each.site for each in self._run.loaders()), None)
        return Variant(
            name=REPLAY,
            cause="input",
            what="kept batches were handed out instead of the loader's",
            site=site,
            begin=mode("replay"),
            end=mode(""),
            uses=self._run.feeds.count_served,
            settle=max(each.prefetched for each in feeds) + 1
            if any(f.workers for f in feeds)
            else 0,
        )

    def _kept(self, suspects: Sequence[tuple[Group, Suspect]]) -> Variant:
        copies, replayed = KeptCopies(self._run.feeds), self._replayed(self._run.training_feeds())

        def begin() -> None:
            replayed.begin()
            copies.install()

        def end() -> None:
            copies.remove()
            replayed.end()

        copying = [each for _, each in suspects if each.phase == "host" and each.copy_seconds]
        worst = max(copying, key=lambda each: each.copy_seconds)
        return replace(
            replayed,
            name="kept copies",
            cause="transfer",
            what="conversions of replayed batches gave kept results",
            site=worst.site,
            begin=begin,
            end=end,
            against=REPLAY,
        )

    def _full_precision(self) -> Variant:
        spot = self._run.autocast_spots.most_common(1)[0][0]
        return Variant(
            name="no autocast",
            cause="precision",
            what="autocast was switched off",
            site=self._run.sources.site(spot),
            begin=self._run.autocast.switch_off,
            end=self._run.autocast.switch_on,
        )

    def _record(self, swaps: Sequence[tuple[Swap, Suspect]]) -> Plan:
        for swap, _ in swaps:
            swap.record()
        self._run.installed += [swap.remove for swap, _ in swaps]
        yield
        for swap, _ in swaps:
            swap.remove()

    def _swapped(self, swap: Swap, suspect: Suspect) -> Variant:
        return Variant(
            name=f"replayed {suspect.key}",
            cause="input" if suspect.feeds else "recompute" if suspect.repeats else "host",
            what=f"{suspect.site.function} gave back kept results",
            site=suspect.site,
            begin=swap.replay,
            end=swap.remove,
        )

    def _run_blocks(self, variants: Sequence[Variant]) -> Plan:
        self.changes += [_change(each) for each in variants]
        unchanged = [_unchanged(name) for name in (PLAIN, AGAIN)]
        sides = [*unchanged, *variants]
        steps = sum(self._run.counts.window + each.settle for each in sides)
        blocks = plan_blocks(self._run.wanted, self._run.typical_seconds(), steps)
        yield from self._blocks(sides, self._run.agree(blocks), first=0)

    def _try_batch(self) -> Plan:
        feeds = [each for each in self._run.training_feeds() if each.batches]
        if not feeds or not all(join(each) for each in feeds):
            return
        site = next((each.site for each in self._run.loaders()), None)
        joined = replace(
            self._replayed(feeds),
            name="joined batches",
            cause="batch",
            what=f"{MOST_KEPT} kept batches were joined to one",
            site=site,
            begin=lambda: setattr(self._run.feeds, "mode", "join"),
            against="replayed beside",
            samples=float(MOST_KEPT),
        )
        beside = replace(self._replayed(feeds), name="replayed beside")
        self.changes.append(_change(joined))
        steps = (1 + MOST_KEPT) * self._run.counts.window
        blocks = plan_blocks(self._run.wanted, self._run.typical_seconds(), steps, BATCH_SHARE)
        yield from self._blocks([joined, beside], blocks, first=FIRST_BATCH_BLOCK)

    def _blocks(self, sides: Sequence[Variant], blocks: int, first: int) -> Plan:
        order = random.Random(SEED)
        settle = 0
        sampled = self._run.stacks.seconds
        self._run.stacks.switch_on()
        for block in range(first, first + blocks):
            if self._is_late(block - first, last=first > 0):
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

    def _is_late(self, blocks: int, *, last: bool) -> bool:
        """Slow steps make few blocks; ranks must not decide this by their own clocks."""
        share = 1.0 if last else 1 - BATCH_SHARE
        spent = (time.perf_counter() - self._run.began) / self._run.wanted.seconds
        enough = FEWEST_FOR_ROBUST_INTERVAL if spent < MOST_OVERTIME else FEWEST_FOR_INTERVAL
        return self._run.ranks == 1 and spent > share and blocks >= enough

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


def _tensors_of(optimizer: torch.optim.Optimizer) -> int:
    return sum(len(group["params"]) for group in optimizer.param_groups)


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
        failed,
    )
