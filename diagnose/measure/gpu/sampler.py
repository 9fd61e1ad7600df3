"""What did the GPUs do while something else was measured? NVML is polled by a thread meanwhile.

The thread belongs to the supervising process: the measured one is not disturbed, and a driver
call that hangs costs the samples but never the measurement.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import fields, replace
from types import TracebackType
from typing import Any

from diagnose.measure.gpu.energy import Series, Window, thin_out
from diagnose.measure.gpu.nvml import Failure, Identity, Session
from diagnose.measure.gpu.poll import FAST_SECONDS, Clock, GpuPoll
from diagnose.measure.gpu.use import GpuTrace, measure_watts, summarize
from diagnose.records.header import Reading
from diagnose.records.run import GpuUse, PowerTrace

# Faster polling for long made drivers answer 0 W or "not supported", and costs power itself.
POLL_SECONDS = 0.05
DETECT_SECONDS = 10.0  # a counter that has not moved enough by then is polled like the others
STOP_SECONDS = 2.0
# A counter that moves every second is the slowest known; its next move closes the last window.
SETTLE_SECONDS = 2.0
HUNG_SECONDS = 2.0  # NVML calls take milliseconds
MAX_TRACE_POINTS = 600  # more than a figure has pixels to show


class Sampler:
    """Polls the GPUs of `identities` from start() to stop()."""

    def __init__(
        self,
        session: Session | Failure,
        identities: Sequence[Identity],
        idle_watts: Sequence[Reading] = (),  # of each, if it was measured before the run
        clock: Clock = time.monotonic,
    ) -> None:
        self._failure = session if isinstance(session, Failure) else None
        self._count = len(identities)
        self._clock = clock
        self._started_at = clock()
        self._polls = (
            ()
            if isinstance(session, Failure)
            else tuple(GpuPoll(session, each, self._started_at) for each in identities)
        )
        self._asking_since: float | None = None
        self._stopping = threading.Event()
        # A daemon, because a call that hangs in the driver must not keep the process alive.
        self._thread = threading.Thread(target=self._run, daemon=True, name="nvml-sampler")
        not_measured = Reading(None, "idle power was not measured before the run")
        self._idle_watts = tuple(idle_watts) or (not_measured,) * self._count

    def __enter__(self) -> Sampler:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End polling. Returns in time even if the driver does not; the samples stay readable."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(STOP_SECONDS)

    def poll_due(self) -> None:
        """One round over the GPUs. The thread does this again and again."""
        for poll in self._polls:
            if self._clock() >= poll.due and not self._stopping.is_set():
                self._asking_since = self._clock()
                poll.poll(self._clock)
                self._asking_since = None

    def use_during(
        self, windows: Sequence[Window], gpus: Sequence[int] | None = None
    ) -> tuple[GpuUse, ...]:
        """What each GPU did within the windows; `gpus` restricts it to these positions."""
        wanted = range(self._count) if gpus is None else gpus
        if windows:
            self._settle(max(end for _, end in windows))
        traces = self._traces()
        return tuple(summarize(gpu, traces[gpu], windows, self._idle_watts[gpu]) for gpu in wanted)

    def watts_between(self, begin: float, end: float) -> tuple[Reading, ...]:
        self._settle(end)
        return tuple(measure_watts(trace, begin, end) for trace in self._traces())

    def power_between(self, begin: float, end: float, origin: float) -> tuple[PowerTrace, ...]:
        """Power for a figure, in seconds since `origin`. GPUs without a sample are left out."""
        shown = [thin_out(it.watts, begin, end, MAX_TRACE_POINTS) for it in self._traces()]
        return tuple(
            PowerTrace(gpu, tuple(at - origin for at in series.at), tuple(series.values))
            for gpu, series in enumerate(shown)
            if series.at
        )

    def energy_period_seconds(self) -> tuple[Reading, ...]:
        """How often each GPU's energy counter moves."""
        if self._failure:
            return (Reading(None, self._failure.reason),) * self._count
        return tuple(self._say_period(poll) for poll in self._polls)

    def _say_period(self, poll: GpuPoll) -> Reading:
        period = poll.period.value
        if period is None:
            return Reading(None, poll.joules.series().reason or poll.period.reason)
        if period < 2 * FAST_SECONDS:
            return Reading(period, "at most: it was not polled fast enough to see more")
        return poll.period

    def _traces(self) -> tuple[GpuTrace, ...]:
        if self._failure:
            return (_end_all(GpuTrace(), self._started_at, self._failure.reason),) * self._count
        traces = tuple(poll.trace() for poll in self._polls)
        since = self._hung_since()
        if since is None:
            return traces
        reason = f"lost at t={since - self._started_at:.1f} s: NVML has not answered since then"
        return tuple(_end_all(trace, since, reason) for trace in traces)

    def _hung_since(self) -> float | None:
        since = self._asking_since
        return since if since is not None and self._clock() - since >= HUNG_SECONDS else None

    def _settle(self, end: float) -> None:
        """Wait until the samples reach beyond `end`, or until they never will."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while self._thread.is_alive() and time.monotonic() < deadline:
            if self._hung_since() is not None or all(_reaches(it, end) for it in self._polls):
                return
            time.sleep(FAST_SECONDS)

    def _run(self) -> None:
        pause = 0.0
        while not self._stopping.wait(pause):
            began = self._clock()
            self.poll_due()
            pause = max(0.0, began + self._poll_seconds() - self._clock())

    def _poll_seconds(self) -> float:
        detecting = any(poll.is_detecting() for poll in self._polls)
        if detecting and self._clock() - self._started_at < DETECT_SECONDS:
            return FAST_SECONDS
        periods = [it.period.value for it in self._polls if it.period.value is not None]
        return max(min(periods, default=0.0) / 2, POLL_SECONDS)


def _reaches(poll: GpuPoll, end: float) -> bool:
    counted = poll.joules.ended or poll.joules.changed_at >= end
    powered = poll.watts.ended or poll.power_read_at >= end
    return counted and powered and poll.gauges_read_at >= end


def _end_all(trace: GpuTrace, at: float, reason: str) -> GpuTrace:
    ended: dict[str, Any] = {
        spec.name: _end(value, at, reason)
        for spec in fields(trace)
        if isinstance(value := getattr(trace, spec.name), Series)
    }
    limits = {name: _end(each, at, reason) for name, each in trace.throttle_seconds.items()}
    return replace(trace, throttle_seconds=limits, **ended)


def _end(series: Series, at: float, reason: str) -> Series:
    # What had failed before keeps its own reason.
    if series.ended_at is not None:
        return series
    return replace(series, ended_at=at, reason=reason)
