"""What happens at the end of each step? The passes of a run, one after the other.

Warm-up, plain steps with nothing but the boundary hook, sampled steps, two mapped steps, and
then windows in which one suspected cause at a time is removed, in random order beside unchanged
ones. The passes are one generator: between two steps it runs until its next `yield`.
"""

from __future__ import annotations

import functools
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from diagnose.measure.machine.device import Device, open_device
from diagnose.measure.machine.out_of_memory import is_out_of_memory
from diagnose.measure.script.change.changes import AutocastWatch
from diagnose.measure.script.change.replay import Feed, Feeds, fetch_items
from diagnose.measure.script.change.trials import Trials
from diagnose.measure.script.watch.boundary import OPTIMIZER_STEP, Boundary
from diagnose.measure.script.watch.ceilings import measure_ceilings
from diagnose.measure.script.watch.forwards import Forwards
from diagnose.measure.script.watch.growth import Lengths, resident_bytes
from diagnose.measure.script.watch.origins import Origins
from diagnose.measure.script.watch.plan import (
    PLAIN_SHARE,
    SAMPLED_SHARE,
    START_SHARE,
    WARMUP_SHARE,
    Counts,
    plan_counts,
)
from diagnose.measure.script.watch.program import Enough
from diagnose.measure.script.watch.stacks import Seconds, Stacks, add_seconds
from diagnose.measure.script.watch.suspects import Group, Judge, Spine, group_samples
from diagnose.measure.script.watch.where import Sources, Spot, block_around
from diagnose.measure.script.watch.work import StepMap
from diagnose.measure.words import one_sentence
from diagnose.records.script import Ceilings, Loader, Site, Suspect, Wanted
from diagnose.records.stats import FEWEST_FOR_ROBUST_INTERVAL

LOOKS_AT_LENGTHS = 24
ITEM_SECONDS = 0.5
# A script that goes on after so many stops holds every exception there is.
MOST_STOPS = 3

Plan = Iterator[None]


class Observer:
    """Runs inside the script's own process, between its steps."""

    def __init__(
        self,
        wanted: Wanted,
        ranks: int,
        agree: Callable[[Any], Any],
        leave: Callable[[], None],
    ) -> None:
        self.wanted = wanted
        self.sources = Sources(Path.cwd())
        self.device: Device = open_device(None)
        self.forwards = Forwards()
        self.feeds = Feeds(self.sources)
        self.boundary = Boundary(self.forwards, self._on_step)
        self.stacks = Stacks(self.sources, frozenset((Observer._on_step.__code__,)))
        self.autocast = AutocastWatch(self._note_autocast)
        self.map = StepMap(self.sources, self.device, self.forwards)
        self.lengths = Lengths(self.sources)
        self.origins = Origins(self.sources)
        self.steps = 0
        self.stage = "start"
        self.plain: list[float] = []
        self.all_plain: list[tuple[int, float]] = []
        self.hook_seconds: list[float] = []
        self.early: Seconds = {}
        self.late: Seconds = defaultdict(float)
        self.early_steps = self.late_steps = 0
        self.sampled_seconds = 0.0
        self.memory: list[tuple[int, int]] = []
        self.ends: set[Spot] = set()
        self.marks: set[tuple[Spot, ...]] = set()
        self.fault = ""
        self.failed = ""
        self._item_spot: Spot | None = None
        self._leave = leave  # ends the process; for scripts that hold even BaseException
        self._stops = 0
        self.is_open = False
        self.ranks = ranks
        self.agree = agree
        self._trained: set[int] = set()
        self._trained_calls = 0
        self.trained_calls_per_step = 0
        self.autocast_spots: Counter[Spot] = Counter()
        self.installed: list[Callable[[], None]] = []
        self._plan: Plan = self._passes()
        self._kind = ""
        self._left = self.began = time.perf_counter()
        self._frame: FrameType | None = None
        self.step_seconds = 0.0
        self.trials = Trials(self)

    # --- from outside ---

    def start(self) -> None:
        self.began = time.perf_counter()
        self.feeds.watch_construction()
        self.installed.append(self.feeds.forget)
        self.origins.install()
        self.installed.append(self.origins.remove)
        self.boundary.install()
        self.is_open = True

    def caused(self, error: BaseException) -> bool:
        """Whether a change of ours made the script fail; what was measured before still counts."""
        reason = f"{type(error).__name__}: {one_sentence(str(error))}"
        memory = isinstance(error, Exception) and is_out_of_memory(error, torch.OutOfMemoryError)
        if not self.map.is_watching and not self.trials.fail(reason, memory=memory):
            return False
        self.failed = reason
        return True

    def close(self) -> None:
        """Undo everything, whatever state the run ended in."""
        self.is_open = False
        self.trials.abandon()
        self.map.end()
        self.stacks.switch_off()
        while self.installed:
            self.installed.pop()()
        self.boundary.remove()

    # --- between two steps ---

    def _on_step(self) -> None:
        entered = time.perf_counter()
        self.step_seconds = entered - self._left
        self.steps += 1
        if self._stops:
            self._stop()
        if self.boundary.kind != self._kind:
            self._kind, self._plan = self.boundary.kind, self._passes()
        self._frame = sys._getframe(1)
        try:
            next(self._plan)
        except StopIteration:
            self.stage = "done"
            self._stop()
        except Enough:
            raise
        except Exception as error:  # a fault of this suite must never look like the script's
            self.fault = f"{type(error).__name__}: {one_sentence(str(error))}"
            self.stage = "fault"
            self._stop()
        finally:
            self._frame = None
        self._left = time.perf_counter()
        if self.stage == "plain":
            self.hook_seconds.append(self._left - entered)

    def _stop(self) -> None:
        if self.wanted.keep_running:
            self.close()
            return
        self._stops += 1
        if self._stops > MOST_STOPS:
            self._leave()
        raise Enough

    def _passes(self) -> Plan:
        yield from self._warm_up()
        yield from self._time_plain()
        yield from self._sample()
        yield from self._map()
        if self.wanted.interventions and not self.wanted.keep_running:
            self.stage = "tried"
            yield from self.trials.run(self.ranks)

    def _warm_up(self) -> Plan:
        self.stage = "warm-up"
        times: list[float] = []
        first = time.perf_counter()
        self.began = max(self.began, first - self.wanted.seconds * START_SHARE)
        # Whoever counts steps, and ranks that must agree, count those of the warm-up too.
        counted = self.ranks > 1 or self.wanted.steps is not None
        least = 0.0 if counted else self.wanted.seconds * WARMUP_SHARE
        while len(times) < self.wanted.warmup or time.perf_counter() - first < least:
            yield
            times.append(self.step_seconds)
        times.sort()
        typical = times[len(times) // 2] if times else self.step_seconds
        counts = plan_counts(self.wanted, typical, self.ranks)
        self.counts = Counts(**self.agree(counts.as_dict()))

    def _time_plain(self) -> Plan:
        self.stage = "plain"
        self.plain.clear()
        for _ in self._in_time(self.counts.plain, PLAIN_SHARE):
            yield
            self.plain.append(self.step_seconds)
            self.all_plain.append((self.steps, self.step_seconds))

    def _sample(self) -> Plan:
        self.stage = "sampled"
        self._install()
        looks = max(1, self.counts.sampled // LOOKS_AT_LENGTHS)
        self.stacks.switch_on()
        for number in self._in_time(self.counts.sampled, SAMPLED_SHARE):
            yield
            self.early_steps += 1
            self.sampled_seconds += self.step_seconds
            self.ends.update(self.sources.spots(self._frame))
            self.memory.append((self.steps, resident_bytes(self.device)))
            if number % looks == 0:
                self.lengths.look(self._frame, self.steps)
        self.stacks.switch_off()
        self.trained_calls_per_step = round(self._trained_calls / self.early_steps)
        self.early = self.stacks.seconds
        self.stacks.seconds = defaultdict(float)

    def _in_time(self, steps: int, share: float) -> Iterator[int]:
        """So many steps, or fewer where a machine that became busy makes them take too long.

        Ranks must not decide this by their own clocks.
        """
        first = time.perf_counter()
        for number in range(steps):
            late = time.perf_counter() - first > self.wanted.seconds * share
            if self.ranks == 1 and late and number >= FEWEST_FOR_ROBUST_INTERVAL:
                return
            yield number

    def _install(self) -> None:
        self.feeds.install()
        self.installed.append(self.feeds.remove)
        self.autocast.install()
        self.installed.append(self.autocast.remove)
        if self.boundary.kind == OPTIMIZER_STEP:
            self.forwards.before.append(self._note_forward)
            self.forwards.install()
            self.installed.append(self.forwards.remove)
        if not self.device.is_cpu:
            self._settle_phases()

    def _settle_phases(self) -> None:
        """Queued device work is waited for in the phase that asked for it."""

        def before(*_: object) -> None:
            self.device.synchronize()

        def after(module: torch.nn.Module) -> None:
            self.device.synchronize()

        self.forwards.before.append(before)
        self.forwards.after.append(after)
        self.boundary.settle = self.device.synchronize

    def _map(self) -> Plan:
        self.stage = "mapped"
        for _ in range(2):
            self.map.begin()
            yield
            self.map.end()
            yield  # another batch in between, and the caches are warm again
        if not self.wanted.keep_running:
            self._watch_items()

    def _watch_items(self) -> None:
        """What workers do cannot be seen from here; the same items are fetched once more."""
        hidden = [feed for feed in self.training_feeds() if feed.workers]
        if not hidden:
            return
        sampled, self.stacks.seconds = self.stacks.seconds, defaultdict(float)
        self.stacks.switch_on()
        for feed in hidden:
            fetch_items(feed, ITEM_SECONDS)
        self.stacks.switch_off()
        lines: dict[Spot, float] = defaultdict(float)
        for stack, seconds in self.stacks.seconds.items():
            lines[stack.spots[0]] += seconds
        self._item_spot = max(lines, key=lambda spot: lines[spot], default=None)
        self.stacks.seconds = sampled

    # --- what the passes note ---

    def _note_forward(
        self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        if module.training and torch.is_grad_enabled():
            self._trained_calls += 1
            if id(module) not in self._trained:
                self._trained.update(id(each) for each in module.modules())
        elif not module.training and id(module) in self._trained:
            mark = tuple(self.sources.spots(sys._getframe(1)))
            self.marks.add(mark)
            ends = {spot.code for spot in self.ends}
            self.stacks.evaluating |= {spot.code for spot in mark} - ends

    def _note_autocast(self) -> None:
        spots = self.sources.spots(sys._getframe(1))
        if spots:
            self.autocast_spots[spots[0]] += 1

    # --- the picture ---

    def spine(self) -> Spine:
        samples = add_seconds(self.early, self.late)
        return Spine(self.ends, samples, sorted(self.marks, key=str), self.map.steps)

    def groups(self) -> dict[str, Group]:
        groups = group_samples(add_seconds(self.early, self.late), self.spine())
        if "input" in groups:
            groups["input"].name_if_hidden(self._item_spot or self._loader_spot())
        if "optimizer" in groups:
            groups["optimizer"].name_if_hidden(self.origins.optimizer_spot(self.boundary.optimizer))
        return groups

    def _loader_spot(self) -> Spot | None:
        return next((each.spot for each in self.training_feeds() if each.spot is not None), None)

    def suspects(self) -> list[tuple[Group, Suspect]]:
        groups, per_step = self.groups(), self.per_step()
        judge = Judge(self.sources, self.map.steps, per_step)
        backward = groups["backward"].seconds * per_step if "backward" in groups else 0.0
        parts = [part for group in groups.values() for part in judge.split(group)]
        found = [(group, judge.suspect(group, backward)) for group in parts]
        return [(group, suspect) for group, suspect in found if suspect is not None]

    def per_step(self) -> float:
        """Turns seconds of samples into those of one plain step.

        Sampling slows a step down a little, and a shared machine changes its mind.
        """
        if not self.sampled_seconds:
            return 0.0
        return self.typical_seconds() / self.sampled_seconds

    def typical_seconds(self) -> float:
        return sum(self.plain) / len(self.plain) if self.plain else self.step_seconds

    @functools.cache  # noqa: B019 - one observer lives as long as its process
    def ceilings(self) -> Ceilings:
        return measure_ceilings(self.device)

    def optimizer_site(self, optimizer: torch.optim.Optimizer | None) -> Site | None:
        spot = self.origins.optimizer_spot(optimizer)
        return self.sources.site(spot) if spot is not None else None

    def backward_site(self) -> Site | None:
        group = self.groups().get("backward")
        spot = group.hottest if group is not None else None
        return self.sources.site(spot) if spot is not None else None

    def training_feeds(self) -> list[Feed]:
        """Loaders that the spine iterates over in the loop of its steps."""
        anchors = self.spine().anchors
        found = []
        for feed in self.feeds.feeds.values():
            for spot in feed.callers:
                if spot.code in anchors and not any(spot in mark for mark in self.marks):
                    block = block_around(spot, ())
                    free = block_around(spot, anchors[spot.code])
                    if block is None or free is None or block != free:
                        found.append(feed)
                        break
        return found

    def loaders(self) -> tuple[Loader, ...]:
        return tuple(
            Loader(
                self.sources.site(feed.spot) if feed.spot is not None else None,
                feed.workers,
                feed.batch_size,
            )
            for feed in self.training_feeds()
        )
