"""What happens at the end of each step? The passes of a run, one after the other.

Warm-up, plain steps with nothing but the boundary hook, sampled steps, two mapped steps, and
then windows in which one suspected cause at a time is removed, in random order beside unchanged
ones. The passes are one generator: between two steps it runs until its next `yield`.

A job that is only watched computes what it would compute without us: nothing is kept, replayed
or called again, and no step is mapped where that would cost more than a small share of the time
that the job has run.
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
from torch._C._autograd import _get_sequence_nr, _profiler_enabled
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from diagnose.measure.script.change.trials import Trials
from diagnose.measure.script.patches import Patches
from diagnose.measure.script.plan import PLAIN_SHARE, SAMPLED_SHARE, Timetable
from diagnose.measure.script.program import Enough
from diagnose.measure.script.watch.boundary import OPTIMIZER_STEP, Boundary, Forwards
from diagnose.measure.script.watch.busy import Busy
from diagnose.measure.script.watch.growth import Lengths, resident_bytes
from diagnose.measure.script.watch.origins import Feeds, Origins, fetch_items
from diagnose.measure.script.watch.seen import Instruments, Picture, Seen
from diagnose.measure.script.watch.stacks import Seconds, Stacks
from diagnose.measure.script.watch.where import Sources, Spot
from diagnose.measure.script.watch.work import StepMap
from diagnose.measure.trace.keep import kept_trace
from diagnose.measure.words import one_sentence
from diagnose.records.stats import FEWEST_FOR_ROBUST_INTERVAL

LOOKS_AT_LENGTHS = {"try": 24, "watch": 8}  # a look takes up to a millisecond
ITEM_SECONDS = 0.5
TRACED_STEPS = 5
# A script that goes on after so many stops holds every exception there is.
MOST_STOPS = 3
# Of the time that a watched job has run: looking at it, and mapping two of its steps, may each
# have taken so much, and so much at least.
COST_SHARE, COST_SECONDS = 0.002, 0.05
TOO_SHORT = "the job was too short: counting them would have taken a noticeable share of it"
# What mapping adds to an operator, before it was measured; a node has about so many operators in
# forward, backward and update together.
SECONDS_PER_OPERATOR, OPERATORS_PER_NODE = 1e-4, 4

Pass = Iterator[None]


class Passes:
    """Runs inside the script's own process, between its steps, and notes what is seen there."""

    def __init__(
        self,
        patches: Patches,
        timetable: Timetable,
        finish: Callable[[], None],
        leave: Callable[[], None],
    ) -> None:
        self.seen = Seen()
        self.is_open = False
        self._mode = timetable.options.mode
        sources, forwards = Sources(Path.cwd()), Forwards()
        self.instruments = Instruments(
            patches=patches,
            sources=sources,
            forwards=forwards,
            boundary=Boundary(forwards, self._on_step),
            feeds=Feeds(sources, keeps=timetable.options.mode == "try"),
            origins=Origins(sources),
            stacks=Stacks(sources, frozenset((Passes._on_step.__code__,))),
        )
        self._timetable = timetable
        self._finish = finish  # tells what is known while a watched job goes on
        self._leave = leave  # ends the process; for scripts that hold even BaseException
        self._stops = 0
        self._is_of: tuple[str, int] = ("", 0)
        self._passes: Pass = iter(())
        self._patches = patches.part()  # of these passes
        self._mapping: Patches | None = None
        self._trials: Trials | None = None
        self._trained: set[int] = set()
        self._lengths = Lengths(sources)
        self._busy: Busy | None = None
        self._began = self._left = time.perf_counter()
        self._hook_seconds = 0.0  # of all steps
        self._frame: FrameType | None = None

    # --- from outside ---

    @property
    def watches(self) -> bool:
        """Whether the job goes on to its own end: it was asked for, or ranks do not agree."""
        return self._timetable.options.mode == "watch" or bool(self._timetable.ranks.apart)

    def start(self) -> None:
        self._timetable.start()
        self._began = time.perf_counter()
        self.instruments.feeds.watch_construction(self.instruments.patches)
        self.instruments.origins.install(self.instruments.patches)
        self.instruments.boundary.install(self.instruments.patches)
        self.is_open = True

    def suspects_itself(self, error: BaseException) -> bool:
        """Whether the script may have failed because of us: trials have begun, or a step was
        being mapped. What was measured until then still counts.
        """
        mapping = self._mapping is not None and self._mapping.active
        if self._timetable.options.mode == "watch" or not (mapping or self._trials is not None):
            return False
        self.seen.failed = f"{type(error).__name__}: {one_sentence(str(error))}"
        if self._trials is not None:
            self._trials.fail(self.seen.failed)
        return True

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
        if self._timetable.ranks.look() or self.instruments.boundary.is_of != self._is_of:
            self._begin_again()
        self._frame = sys._getframe(1)
        try:
            next(self._passes)
        except StopIteration:
            self.seen.stage = "done"
            self._timetable.ranks.agree("stop")
            self._stop()
        except Enough:
            raise
        except Exception as error:  # a fault of this suite must never look like the script's
            self.instruments.patches.note_fault(error)
            self.seen.fault = self.instruments.patches.faults[-1]
            if self.seen.stage != "tried":  # changed ranks cannot go on beside an unchanged one
                self._timetable.ranks.part(f"rank {self._timetable.ranks.rank} failed to watch")
            self.seen.stage = "fault"
            self._stop()
        finally:
            self._frame = None
        self._left = time.perf_counter()
        self._hook_seconds += self._left - entered
        if self.seen.stage == "plain":
            self.seen.hook_seconds.append(self._left - entered)

    def _begin_again(self) -> None:
        """What was seen of steps of another kind, or by fewer ranks, says nothing about these."""
        self._is_of = self.instruments.boundary.is_of
        self._patches.undo()
        self._patches = self.instruments.patches.part()
        self.seen = Seen(steps=self.seen.steps, step_seconds=self.seen.step_seconds)
        self._lengths = Lengths(self.instruments.sources)
        self._busy = None
        self._passes = self._run()

    def _stop(self) -> None:
        # A rank that left alone would leave the others waiting.
        if self.watches:
            self.close()
            self._finish()
            return
        self._stops += 1
        if self._stops > MOST_STOPS:
            self._leave()
        raise Enough

    def _run(self) -> Pass:
        """A short round first, so that a script that ends early is told something."""
        while self.seen.steps < self._timetable.options.from_step:
            yield
        self._timetable.ranks.meet(self._is_of[0], self._patches)
        yield from self._warm_up()
        counts, first = self._timetable.counts, FEWEST_FOR_ROBUST_INTERVAL
        yield from self._look(first, first, is_last=False)
        yield from self._look(counts.plain - first, counts.sampled - first, is_last=True)
        if self.watches:
            return
        yield from self._keep_trace()
        self._watch_items()
        self.seen.stage = "tried"
        self._install(self._patches)
        self._trials = Trials(Picture(self.seen, self.instruments), self._timetable)
        yield from self._trials.run()

    def _look(self, plain: int, sampled: int, *, is_last: bool) -> Pass:
        yield from self._time_plain(plain)
        yield from self._without_profiler()
        watching = self._patches.part()
        self._install(watching)
        self._settle(watching)
        yield from self._sample(sampled)
        watching.undo()
        if not self.seen.works:
            yield from self._map(may_wait=is_last)

    def _warm_up(self) -> Pass:
        self.seen.stage = "warm-up"
        times: list[float] = []
        for _ in self._timetable.warm_up():
            yield
            times.append(self.seen.step_seconds)
        self._timetable.plan(statistics.median_high(times or [self.seen.step_seconds]))

    def _time_plain(self, steps: int) -> Pass:
        self.seen.stage = "plain"
        busy = self._busy = self._busy or Busy(self.instruments.device)
        busy.begin()
        for _ in self._timetable.in_time(steps, PLAIN_SHARE[self._mode]):
            yield
            self.seen.plain.append(self.seen.step_seconds)
            self.seen.all_plain.append((self.seen.steps, self.seen.step_seconds))
            busy.note()
        busy.end()
        self.seen.busy = busy.reading

    def _sample(self, steps: int) -> Pass:
        seen, sources = self.seen, self.instruments.sources
        looks = LOOKS_AT_LENGTHS[self._mode]
        seen.stage = "sampled"
        sampling = self._patches.part()
        sampling.on_undo(lambda: seen.grown.__setitem__(slice(None), self._lengths.growing()))
        self.instruments.stacks.switch_on(sampling, into=seen.early)
        for number in self._timetable.in_time(steps, SAMPLED_SHARE[self._mode]):
            if number >= FEWEST_FOR_ROBUST_INTERVAL and self._costs_too_much():
                break
            yield
            seen.early_steps += 1
            seen.sampled_seconds += seen.step_seconds
            now_and_then = number % max(1, steps // looks) == 0
            if now_and_then or not self.watches:
                seen.ends.update(sources.spots(self._frame))
                seen.memory.append((seen.steps, resident_bytes(self.instruments.device)))
            if now_and_then:
                self._lengths.look(self._frame, seen.steps)
        sampling.undo()

    def _install(self, patches: Patches) -> None:
        """What a plain step is timed without."""
        watch = self.instruments
        watch.feeds.watch_batches(patches)
        watch.origins.watch_autocast(patches, self.seen.autocast)
        if watch.boundary.kind == OPTIMIZER_STEP:
            watch.forwards.install(patches)
            watch.forwards.listen(patches, before=self._note_forward)

    def _settle(self, patches: Patches) -> None:
        """Queued device work is waited for in the phase that asked for it, but only in steps that
        are sampled or mapped: in the windows of a trial host and device must overlap as ever.
        """
        watch = self.instruments
        if watch.device.is_cpu:
            return

        def settle(*_: object) -> None:
            watch.device.synchronize()

        watch.forwards.listen(patches, before=settle, after=settle)
        patches.set(watch.boundary, "settle", settle)

    def _without_profiler(self) -> Pass:
        """A job that runs a profiler of its own is left without ours as long as it does."""
        while _profiler_enabled() or sys.getprofile() is not None:
            yield

    def _map(self, *, may_wait: bool) -> Pass:
        self.seen.stage = "mapped"
        watch = self.instruments
        self.seen.unmapped = self._why_unmapped()
        if self.watches and not self.seen.unmapped:
            yield from self._await_mapping(may_wait=may_wait)
        if self.seen.unmapped:
            return
        watching = self._patches.part()
        self._install(watching)
        self._settle(watching)
        for _ in range(2):
            yield from self._without_profiler()
            self._mapping = self._patches.part()
            step = StepMap(watch.sources, watch.device, watch.forwards, self._mapping)
            yield
            self._mapping.undo()
            self.seen.works.append(step.work)
            yield  # another batch in between, and the caches are warm again
        watching.undo()

    def _keep_trace(self) -> Pass:
        """As the profiler sees a few steps, for `diagnose trace` and other tools."""
        path = self._timetable.options.keep_trace
        if not path:
            return
        self.seen.stage = "traced"
        yield from self._without_profiler()
        with self._patches.part() as tracing:
            profiler = tracing.enter(kept_trace(Path(path)))
            for _ in range(TRACED_STEPS):
                yield
                profiler.step()

    @property
    def _affordable(self) -> float:
        """Seconds of a watched job, so far."""
        return max(COST_SECONDS, (time.perf_counter() - self._began) * COST_SHARE)

    def _costs_too_much(self) -> bool:
        """Ranks sample the same steps, so none of them stops by a clock of its own."""
        if not self.watches or self._timetable.ranks.count > 1:
            return False
        return self._hook_seconds + self.instruments.stacks.busy_seconds > self._affordable

    def _why_unmapped(self) -> str:
        if self.instruments.forwards.compiled:
            return "the script compiles its model, and compiled code has no operators to count"
        parameters = (
            parameter
            for optimizer in self.instruments.boundary.optimizers
            for group in optimizer.param_groups
            for parameter in group["params"]
        )
        if any(is_traceable_wrapper_subclass(each) for each in parameters):
            return "its parameters are sharded, and their operators belong to every rank"
        return ""

    def _await_mapping(self, *, may_wait: bool) -> Pass:
        """Until what mapping two steps adds is little beside the time that the job has run."""
        first = _get_sequence_nr()
        yield
        nodes = _get_sequence_nr() - first
        added = 2 * SECONDS_PER_OPERATOR * OPERATORS_PER_NODE * nodes
        self.seen.unmapped = TOO_SHORT
        until = 2 * time.perf_counter() - self._began  # the verdict is at most twice as late
        while added > self._affordable:
            # Ranks that wait by clocks of their own would not tell their times at the same step.
            may_wait = may_wait and time.perf_counter() < until
            if not may_wait or self._timetable.ranks.count > 1:
                break
            yield
        else:
            self.seen.unmapped = ""
        self.seen.unmapped = self._timetable.ranks.agree(self.seen.unmapped)

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
            self.seen.training_calls += 1
            # Calls per step are those of the sampled steps.
            if self.seen.stage == "sampled":
                self.seen.trained_calls += 1
                self.seen.note_rows(module, args, kwargs)
            if id(module) not in self._trained:
                self._trained.update(id(each) for each in module.modules())
        elif not module.training and id(module) in self._trained:
            mark = tuple(self.instruments.sources.spots(sys._getframe(1)))
            self.seen.marks.add(mark)
            ends = {spot.code for spot in self.seen.ends}
            self.instruments.stacks.evaluating |= {spot.code for spot in mark} - ends
