"""What did the GPU do while something else was measured? NVML is polled by a thread meanwhile.

The thread belongs to the supervising process: the measured one is not disturbed, and a driver
call that hangs costs the samples but never the measurement.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import replace

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
NO_IDLE = Reading(None, "idle power was not measured before the run")


class Sampler:
    """Polls the GPU of `identity` from start() to stop()."""

    def __init__(
        self,
        session: Session | Failure,
        identity: Identity,
        idle_watts: Reading = NO_IDLE,
        clock: Clock = time.monotonic,
    ) -> None:
        self._clock = clock
        self._started_at = clock()
        self._idle_watts = idle_watts
        self._poll = (
            session
            if isinstance(session, Failure)
            else GpuPoll(session, identity, self._started_at)
        )
        self._asking_since: float | None = None
        self._stopping = threading.Event()
        # A daemon, because a call that hangs in the driver must not keep the process alive.
        self._thread = threading.Thread(target=self._run, daemon=True, name="nvml-sampler")

    def __enter__(self) -> Sampler:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End polling. Returns in time even if the driver does not; the samples stay readable."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(STOP_SECONDS)

    def poll_due(self) -> None:
        """Ask the GPU once, if it is time to. The thread does this again and again."""
        if isinstance(self._poll, GpuPoll) and self._clock() >= self._poll.due:
            self._asking_since = self._clock()
            self._poll.poll(self._clock)
            self._asking_since = None

    def use_during(self, windows: Sequence[Window]) -> GpuUse:
        """What the GPU did within the windows."""
        if windows:
            self._settle(max(end for _, end in windows))
        return summarize(self._trace(), windows, self._idle_watts)

    def watts_between(self, begin: float, end: float) -> Reading:
        self._settle(end)
        return measure_watts(self._trace(), begin, end)

    def power_between(self, begin: float, end: float, origin: float) -> tuple[PowerTrace, ...]:
        """Power for a figure, in seconds since `origin`; nothing if there is no sample."""
        shown = thin_out(self._trace()["watts"], begin, end, MAX_TRACE_POINTS)
        at = tuple(at - origin for at in shown.at)
        return (PowerTrace(0, at, tuple(shown.values)),) if at else ()

    def energy_period_seconds(self) -> Reading:
        """How often the GPU's energy counter moves."""
        if isinstance(self._poll, Failure):
            return Reading(None, self._poll.reason)
        period = self._poll.period
        if period.value is None:
            return Reading(None, self._poll.joules.series().reason or period.reason)
        if period.value < 2 * FAST_SECONDS:
            return Reading(period.value, "at most: it was not polled fast enough to see more")
        return period

    def _trace(self) -> GpuTrace:
        if isinstance(self._poll, Failure):
            return GpuTrace(missing=Series((), (), self._started_at, self._poll.reason))
        trace = self._poll.trace()
        since = self._hung_since()
        if since is None:
            return trace
        reason = f"lost at t={since - self._started_at:.1f} s: NVML has not answered since then"
        # What had failed before keeps its own reason.
        ended = {
            name: replace(each, ended_at=since, reason=reason) if each.ended_at is None else each
            for name, each in trace.series.items()
        }
        return replace(trace, series=ended)

    def _hung_since(self) -> float | None:
        since = self._asking_since
        return since if since is not None and self._clock() - since >= HUNG_SECONDS else None

    def _settle(self, end: float) -> None:
        """Wait until the samples reach beyond `end`, or until they never will."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while self._thread.is_alive() and time.monotonic() < deadline:
            if self._hung_since() is not None or self._reaches(end):
                return
            time.sleep(FAST_SECONDS)

    def _reaches(self, end: float) -> bool:
        poll = self._poll
        if isinstance(poll, Failure):
            return True
        counted = poll.joules.ended or poll.joules.changed_at >= end
        powered = poll.watts.ended or poll.power_read_at >= end
        return counted and powered and poll.gauges_read_at >= end

    def _run(self) -> None:
        pause = 0.0
        while not self._stopping.wait(pause):
            began = self._clock()
            self.poll_due()
            pause = max(0.0, began + self._poll_seconds() - self._clock())

    def _poll_seconds(self) -> float:
        if isinstance(self._poll, Failure):
            return POLL_SECONDS
        if self._poll.is_detecting() and self._clock() - self._started_at < DETECT_SECONDS:
            return FAST_SECONDS
        return max((self._poll.period.value or 0.0) / 2, POLL_SECONDS)
