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
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

from torch._C._autograd import _get_sequence_nr, _profiler_enabled

from diagnose.measure.script.change.trials import Trials
from diagnose.measure.script.patches import Patches
from diagnose.measure.script.plan import FEWEST_OF_SLOW, Round, Timetable
from diagnose.measure.script.program import Enough
from diagnose.measure.script.watch.activity import Recording, charge, launched_in, record_steps
from diagnose.measure.script.watch.boundary import MODEL_CALL, MODEL_METHOD, Boundary, Forwards
from diagnose.measure.script.watch.busy import Busy
from diagnose.measure.script.watch.calls import ModelCalls, look_into_workers, why_unmapped
from diagnose.measure.script.watch.clock import StepClock
from diagnose.measure.script.watch.growth import Lengths, resident_bytes
from diagnose.measure.script.watch.origins import Feeds, Origins
from diagnose.measure.script.watch.seen import Instruments, Picture, Seen
from diagnose.measure.script.watch.settle import settle
from diagnose.measure.script.watch.slow import StepNotes
from diagnose.measure.script.watch.stacks import Stacks
from diagnose.measure.script.watch.where import Sources
from diagnose.measure.script.watch.work import StepMap
from diagnose.measure.words import one_sentence
from diagnose.records.stats import FEWEST_FOR_ROBUST_INTERVAL

LOOKS_AT_LENGTHS = {"try": 24, "watch": 8}  # a look takes up to a millisecond
SHOW_SECONDS = 0.5
# A script that goes on after so many stops holds every exception there is.
MOST_STOPS = 3
# What looking at a watched job, and mapping two of its steps, may take: a share of the time that it
# has run, and so many seconds at least.
LOOKING_COST, MAPPING_COST = (0.001, 0.02), (0.002, 0.03)
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
        show: Callable[[str], None] | None = None,
    ) -> None:
        self.seen = Seen()
        self.is_open = False
        self._mode = timetable.options.mode
        sources, forwards = Sources(Path.cwd()), Forwards()
        stacks = Stacks(sources, frozenset((Passes._on_step.__code__,)))
        self.instruments = Instruments(
            patches=patches,
            sources=sources,
            forwards=forwards,
            boundary=Boundary(forwards, self._on_step),
            feeds=Feeds(sources, keeps=timetable.options.mode == "try"),
            origins=Origins(sources),
            stacks=stacks,
            notes=StepNotes(stacks),
        )
        self.instruments.feeds.is_evaluating = lambda: self.instruments.stacks.evaluates
        self._timetable = timetable
        self._finish = finish  # tells what is known while a watched job goes on
        self._leave = leave  # ends the process; for scripts that hold even BaseException
        self._show, self._shown, self._leading = show, 0.0, ""  # for a person who waits
        self._stops = 0
        self._is_of: tuple[str, int] = ("", 0)
        self._passes: Pass = iter(())
        self._patches = patches.part()  # of these passes
        self._mapping: Patches | None = None
        self._trials: Trials | None = None
        self._has_tried = False
        self._calls = ModelCalls(self)
        self._lengths = Lengths(sources)
        self._into = self.seen.early  # samples of this round
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
        if self._timetable.options.mode == "watch" or not (mapping or self._has_tried):
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
        self.seen.note_end(entered)
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
        if self._show is not None and entered - self._shown > SHOW_SECONDS:
            self._shown = entered
            self._show(self._describe())
        self._left = time.perf_counter()
        self._hook_seconds += self._left - entered
        if self.seen.stage == "plain":
            self.seen.hook_seconds.append(self._left - entered)

    def _describe(self) -> str:
        doing = (self._trials.doing if self._trials is not None else "") or self.seen.doing
        left = f"{self._timetable.seconds_left:.0f} s left"
        return " · ".join(filter(None, (doing, f"{self.seen.steps} steps", left, self._leading)))

    def _begin_again(self) -> None:
        """What was seen of steps of another kind, or by fewer ranks, says nothing about these."""
        self._is_of = self.instruments.boundary.is_of
        self._patches.undo()
        self._patches = self.instruments.patches.part()
        self.seen = Seen(steps=self.seen.steps, step_seconds=self.seen.step_seconds)
        self._into = self.seen.early
        self.instruments.notes.clear()
        self._trials = None
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
        """What is known when the time is over, or the script ends, is the verdict."""
        for _ in self._all_passes():
            yield
            self._timetable.count_step()
            if self._timetable.is_over and not self.watches:
                return

    def _all_passes(self) -> Pass:
        while self.seen.steps < self._timetable.options.from_step:
            yield
        ranks = self._timetable.ranks
        ranks.meet(self._is_of[0], self._patches)
        ranks.apart = ranks.apart or self.instruments.boundary.why_untouchable
        yield from self._warm_up()
        if self.instruments.boundary.kind.endswith(MODEL_METHOD):
            is_step = self.instruments.boundary.kind == MODEL_CALL
            done = None if is_step else self._calls.note_prefix_done
            self.instruments.forwards.listen(self._patches, self._calls.note_prefix, done)
        if self.watches:
            # A short look first, so that a job that ends early is told something.
            first, (plain, sampled) = FEWEST_FOR_ROBUST_INTERVAL, self._timetable.watched()
            yield from self._look(first, first, is_last=False)
            yield from self._look(plain - first, sampled - first, is_last=True)
            return
        for each in self._timetable.rounds():
            self._into = self.seen.samples_of(each.number)
            sampled = each.sampled
            if not self.instruments.device.is_cpu and sampled > FEWEST_OF_SLOW:
                sampled *= 4  # there the unchanged windows of trials add no samples
            yield from self._look(each.plain, sampled, is_last=True)
            if not self.watches and not each.number:
                yield from self._record_device()
                self.seen.item_spot = look_into_workers(Picture(self.seen, self.instruments))
            if not self.watches:
                yield from self._try(each)
            if self.watches or self.seen.watched:
                return

    def _try(self, each: Round) -> Pass:
        self.seen.stage = "tried"
        installed = self._patches.part()
        self._install(installed)
        self._has_tried = True
        if self._show is not None:
            self._leading = Picture(self.seen, self.instruments).leading
        if self._trials is None:
            self._trials = Trials(self.seen, self.instruments, self._timetable)
        yield from self._trials.run(each)
        installed.undo()

    def _look(self, plain: int, sampled: int, *, is_last: bool) -> Pass:
        yield from self._time_plain(plain)
        yield from self._without_profiler()
        watching = self._patches.part()
        self._install(watching)
        settle(self.instruments, watching)
        yield from self._sample(sampled)
        watching.undo()
        if not self.seen.works:
            yield from self._map(may_wait=is_last)

    def _warm_up(self) -> Pass:
        """Sampled as well: of a script that ends here its phases are known."""
        self.seen.stage = "warm-up"
        sampling = self._patches.part()
        if not self.watches:
            self.instruments.stacks.switch_on(sampling, into=self.seen.warming)
        clock = StepClock(self.instruments.device)
        clock.begin()
        for _ in self._timetable.warm_up():
            yield
            clock.note()
            self.seen.warm_up.append(self.seen.step_seconds)
            self.seen.ends.update(self.instruments.sources.spots(self._frame))
        sampling.undo()
        times = list(clock.read()) or self.seen.warm_up or [self.seen.step_seconds]
        # The first step of all makes what the others find.
        self._timetable.plan(statistics.median_high(times[1:] or times))

    def _time_plain(self, steps: int) -> Pass:
        self.seen.stage = "plain"
        busy = self._busy = self._busy or Busy(self.instruments.device)
        clock, before = StepClock(self.instruments.device), len(self.seen.plain)
        _ = self.instruments.clocks  # it counts from here on
        busy.begin()
        clock.begin()
        for _ in self._timetable.in_time(steps, "plain"):
            yield
            self.seen.plain.append(self.seen.step_seconds)
            self.seen.all_plain.append((self.seen.steps, self.seen.step_seconds))
            clock.note()
            busy.note()
        busy.end()
        self.seen.busy, self.seen.retries = busy.reading, busy.retries_per_step
        if timed := clock.read():
            self.seen.plain[before:] = timed
            first = self.seen.steps - len(timed) + 1
            self.seen.all_plain[-len(timed) :] = enumerate(timed, first)

    def _sample(self, steps: int) -> Pass:
        seen, sources = self.seen, self.instruments.sources
        looks = LOOKS_AT_LENGTHS[self._mode]
        seen.stage = "sampled"
        sampling = self._patches.part()
        sampling.on_undo(lambda: seen.grown.__setitem__(slice(None), self._lengths.growing()))
        self.instruments.stacks.switch_on(sampling, into=self._into)
        if not self.instruments.forwards.compiled:  # the compiler would look through it
            self.instruments.origins.count_backward(sampling)
        self.instruments.notes.begin()
        for number in self._timetable.in_time(steps, "sampled"):
            if number >= FEWEST_FOR_ROBUST_INTERVAL and self._costs_too_much():
                break
            yield
            self.instruments.note_end_of_step()
            seen.count_sampled(self._into)
            self.instruments.notes.note(seen.steps, seen.step_seconds)
            now_and_then = number % max(1, steps // looks) == 0
            if now_and_then or not self.watches:
                seen.ends.update(sources.spots(self._frame))
                seen.memory.append((seen.steps, resident_bytes(self.instruments.device)))
            if now_and_then:
                self._lengths.look(self._frame, seen.steps, self.instruments.stacks.models)
        sampling.undo()

    def _install(self, patches: Patches) -> None:
        """What a plain step is timed without."""
        watch = self.instruments
        watch.feeds.watch_batches(patches)
        watch.origins.watch_autocast(patches, self.seen.autocast)
        if watch.boundary.kind != MODEL_CALL:
            watch.forwards.install(patches)
            watch.forwards.listen(patches, before=self._calls.note_call)

    def _without_profiler(self) -> Pass:
        """A job that runs a profiler of its own is left without ours as long as it does."""
        while _profiler_enabled() or sys.getprofile() is not None:
            yield

    def _map(self, *, may_wait: bool) -> Pass:
        self.seen.stage = "mapped"
        watch = self.instruments
        self.seen.unmapped = why_unmapped(watch.forwards, watch.boundary)
        if self.watches and not self.seen.unmapped:
            yield from self._await_mapping(may_wait=may_wait)
        if self.seen.unmapped:
            return
        watching = self._patches.part()
        self._install(watching)
        settle(self.instruments, watching)
        for _ in range(2):
            yield from self._without_profiler()
            self._mapping = self._patches.part()
            recording = Recording.of_step(watch.device, self._mapping)
            weights = watch.weights()
            step = StepMap(watch.sources, watch.device, watch.forwards, self._mapping, weights)
            yield
            self._mapping.undo()
            charge(step.work, step.operators, launched_in(recording))
            self.seen.works.append(step.work)
            yield  # another batch in between, and the caches are warm again
        watching.undo()

    def _record_device(self) -> Pass:
        path, ranks = self._timetable.options.keep_trace, self._timetable.ranks.count
        if path or not self.instruments.device.is_cpu:
            self.seen.stage = "traced"
            yield from self._without_profiler()
            yield from record_steps(self.instruments, self.seen, self._patches, path, ranks)

    def _affordable(self, cost: tuple[float, float]) -> float:
        """Seconds of a watched job, so far."""
        share, least = cost
        return max(least, (time.perf_counter() - self._began) * share)

    def _costs_too_much(self) -> bool:
        """Ranks sample the same steps, so none of them stops by a clock of its own."""
        if not self.watches or self._timetable.ranks.count > 1:
            return False
        spent = self._hook_seconds + self.instruments.stacks.busy_seconds
        return spent > self._affordable(LOOKING_COST)

    def _await_mapping(self, *, may_wait: bool) -> Pass:
        """Until what mapping two steps adds is little beside the time that the job has run."""
        first = _get_sequence_nr()
        yield
        nodes = _get_sequence_nr() - first
        added = 2 * SECONDS_PER_OPERATOR * OPERATORS_PER_NODE * nodes
        self.seen.unmapped = TOO_SHORT
        until = 2 * time.perf_counter() - self._began  # the verdict is at most twice as late
        while added > self._affordable(MAPPING_COST):
            # Ranks that wait by clocks of their own would not tell their times at the same step.
            may_wait = may_wait and time.perf_counter() < until
            if not may_wait or self._timetable.ranks.count > 1:
                break
            yield
        else:
            self.seen.unmapped = ""
        self.seen.unmapped = self._timetable.ranks.agree(self.seen.unmapped)
