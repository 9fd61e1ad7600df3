"""What happens at the end of each step? The passes of a run, one after the other.

Warm-up, plain steps with nothing but the boundary hook, sampled steps, two mapped steps, and
then windows in which one suspected cause at a time is removed, in random order beside unchanged
ones. The passes are one generator: between two steps it runs until its next `yield`.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from diagnose.measure.machine.device import open_visible_device
from diagnose.measure.machine.out_of_memory import is_out_of_memory
from diagnose.measure.script.change.trials import Trials
from diagnose.measure.script.patches import Patches
from diagnose.measure.script.plan import PLAIN_SHARE, SAMPLED_SHARE, Timetable
from diagnose.measure.script.program import Enough
from diagnose.measure.script.watch.boundary import OPTIMIZER_STEP, Boundary, Forwards
from diagnose.measure.script.watch.growth import Lengths, resident_bytes
from diagnose.measure.script.watch.origins import Feeds, Origins, fetch_items
from diagnose.measure.script.watch.seen import Instruments, Picture, Seen
from diagnose.measure.script.watch.stacks import Seconds, Stacks
from diagnose.measure.script.watch.where import Sources, Spot
from diagnose.measure.script.watch.work import StepMap
from diagnose.measure.words import one_sentence

LOOKS_AT_LENGTHS = 24
ITEM_SECONDS = 0.5
# A script that goes on after so many stops holds every exception there is.
MOST_STOPS = 3

Pass = Iterator[None]


class Passes:
    """Runs inside the script's own process, between its steps, and notes what is seen there."""

    def __init__(self, patches: Patches, timetable: Timetable, leave: Callable[[], None]) -> None:
        self.seen = Seen()
        self.is_open = False
        sources, forwards = Sources(Path.cwd()), Forwards()
        self.instruments = Instruments(
            patches=patches,
            sources=sources,
            device=open_visible_device(),
            forwards=forwards,
            boundary=Boundary(forwards, self._on_step),
            feeds=Feeds(sources),
            origins=Origins(sources),
            stacks=Stacks(sources, frozenset((Passes._on_step.__code__,))),
        )
        self._timetable = timetable
        self._leave = leave  # ends the process; for scripts that hold even BaseException
        self._stops = 0
        self._kind = ""
        self._passes: Pass = iter(())
        self._patches = patches.part()  # of these passes
        self._mapping: Patches | None = None
        self._trials: Trials | None = None
        self._trained: set[int] = set()
        self._left = time.perf_counter()
        self._frame: FrameType | None = None

    # --- from outside ---

    def start(self) -> None:
        self._timetable.start()
        self.instruments.feeds.watch_construction(self.instruments.patches)
        self.instruments.origins.install(self.instruments.patches)
        self.instruments.boundary.install(self.instruments.patches)
        self.is_open = True

    def caused(self, error: BaseException) -> bool:
        """Whether a change of ours made the script fail; what was measured before still counts."""
        reason = f"{type(error).__name__}: {one_sentence(str(error))}"
        memory = isinstance(error, Exception) and is_out_of_memory(error, torch.OutOfMemoryError)
        mapping = self._mapping is not None and self._mapping.active
        trying = self._trials is not None and self._trials.fail(reason, memory=memory)
        if mapping or trying:
            self.seen.failed = reason
        return mapping or trying

    def close(self) -> None:
        """Undo everything, whatever state the run ended in."""
        self.is_open = False
        self.instruments.patches.undo()

    # --- between two steps ---

    def _on_step(self) -> None:
        entered = time.perf_counter()
        self.seen.step_seconds = entered - self._left
        self.seen.steps += 1
        if self._stops:
            self._stop()
        if self.instruments.boundary.kind != self._kind:
            self._begin_again()
        self._frame = sys._getframe(1)
        try:
            next(self._passes)
        except StopIteration:
            self.seen.stage = "done"
            self._stop()
        except Enough:
            raise
        except Exception as error:  # a fault of this suite must never look like the script's
            self.seen.fault = f"{type(error).__name__}: {one_sentence(str(error))}"
            self.seen.stage = "fault"
            self._stop()
        finally:
            self._frame = None
        self._left = time.perf_counter()
        if self.seen.stage == "plain":
            self.seen.hook_seconds.append(self._left - entered)

    def _begin_again(self) -> None:
        """What was seen of steps of another kind says nothing about these."""
        self._kind = self.instruments.boundary.kind
        self._patches.undo()
        self._patches = self.instruments.patches.part()
        self.seen = Seen(steps=self.seen.steps, step_seconds=self.seen.step_seconds)
        self._passes = self._run()

    def _stop(self) -> None:
        if self._timetable.options.keep_running:
            self.close()
            return
        self._stops += 1
        if self._stops > MOST_STOPS:
            self._leave()
        raise Enough

    def _run(self) -> Pass:
        options = self._timetable.options
        yield from self._warm_up()
        yield from self._time_plain()
        yield from self._sample()
        yield from self._map()
        if options.keep_running:
            return
        self._watch_items()
        if options.interventions:
            self.seen.stage = "tried"
            self._trials = Trials(Picture(self.seen, self.instruments), self._timetable)
            yield from self._trials.run()

    def _warm_up(self) -> Pass:
        self.seen.stage = "warm-up"
        times: list[float] = []
        for _ in self._timetable.warm_up():
            yield
            times.append(self.seen.step_seconds)
        self._timetable.plan(statistics.median_high(times or [self.seen.step_seconds]))

    def _time_plain(self) -> Pass:
        self.seen.stage = "plain"
        for _ in self._timetable.in_time(self._timetable.counts.plain, PLAIN_SHARE):
            yield
            self.seen.plain.append(self.seen.step_seconds)
            self.seen.all_plain.append((self.seen.steps, self.seen.step_seconds))

    def _sample(self) -> Pass:
        seen, sources = self.seen, self.instruments.sources
        seen.stage = "sampled"
        self._install()
        lengths = Lengths(sources)
        steps = self._timetable.counts.sampled
        sampling = self._patches.part()
        sampling.on_undo(lambda: seen.grown.extend(lengths.growing()))
        self.instruments.stacks.switch_on(sampling, into=seen.early)
        for number in self._timetable.in_time(steps, SAMPLED_SHARE):
            yield
            seen.early_steps += 1
            seen.sampled_seconds += seen.step_seconds
            seen.ends.update(sources.spots(self._frame))
            seen.memory.append((seen.steps, resident_bytes(self.instruments.device)))
            if number % max(1, steps // LOOKS_AT_LENGTHS) == 0:
                lengths.look(self._frame, seen.steps)
        sampling.undo()

    def _install(self) -> None:
        """What a plain step is timed without."""
        watch = self.instruments
        watch.feeds.watch_batches(self._patches)
        watch.origins.watch_autocast(self._patches, self.seen.autocast)
        if self._kind == OPTIMIZER_STEP:
            watch.forwards.install(self._patches)
            watch.forwards.listen(self._patches, before=self._note_forward)
        if not watch.device.is_cpu:
            # Queued device work is waited for in the phase that asked for it.
            def settle(*_: object) -> None:
                watch.device.synchronize()

            watch.forwards.listen(self._patches, before=settle, after=settle)
            self._patches.set(watch.boundary, "settle", settle)

    def _map(self) -> Pass:
        self.seen.stage = "mapped"
        watch = self.instruments
        for _ in range(2):
            self._mapping = self._patches.part()
            step = StepMap(watch.sources, watch.device, watch.forwards, self._mapping)
            self.seen.works.append(step.work)
            yield
            self._mapping.undo()
            yield  # another batch in between, and the caches are warm again

    def _watch_items(self) -> None:
        """What workers do cannot be seen from here; the same items are fetched once more."""
        hidden = [feed for feed in Picture(self.seen, self.instruments).feeds if feed.workers]
        if not hidden:
            return
        sampled: Seconds = defaultdict(float)
        sampling = self._patches.part()
        self.instruments.stacks.switch_on(sampling, into=sampled)
        for feed in hidden:
            fetch_items(feed, ITEM_SECONDS)
        sampling.undo()
        lines: dict[Spot, float] = defaultdict(float)
        for stack, seconds in sampled.items():
            lines[stack.spots[0]] += seconds
        self.seen.item_spot = max(lines, key=lambda spot: lines[spot], default=None)

    def _note_forward(
        self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        if module.training and torch.is_grad_enabled():
            # Calls per step are those of the sampled steps.
            self.seen.trained_calls += self.seen.stage == "sampled"
            if id(module) not in self._trained:
                self._trained.update(id(each) for each in module.modules())
        elif not module.training and id(module) in self._trained:
            mark = tuple(self.instruments.sources.spots(sys._getframe(1)))
            self.seen.marks.add(mark)
            ends = {spot.code for spot in self.seen.ends}
            self.instruments.stacks.evaluating |= {spot.code for spot in mark} - ends
