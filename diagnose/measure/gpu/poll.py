"""What is read from one GPU at one moment, and what is done when a reading fails?"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable
from typing import Any

from diagnose.measure.gpu import nvml
from diagnose.measure.gpu import quantities as q
from diagnose.measure.gpu.energy import MIN_CHANGES, Series, find_period
from diagnose.measure.gpu.nvml import Failure, Field, Found, Identity, Session
from diagnose.measure.gpu.quantities import COUNTERS, GAUGES, PowerKind, Quantity
from diagnose.measure.gpu.use import GpuTrace
from diagnose.records.header import Reading

Clock = Callable[[], float]
Answers = dict[Field, float | Failure]

# Until a counter's period is known it is polled faster than any known counter moves.
FAST_SECONDS = 0.02

# Drivers were seen to answer "not supported" now and then when polled fast, so once is not enough.
_GIVE_UP_AFTER = 5
# Clocks and temperatures move slowly, and every question costs the driver time.
_GAUGE_PAUSE_SECONDS = 0.1
_RETRY_SECONDS = 1.0  # a lost GPU rarely returns; asking more often would only fill its log

_FIELDS = (*q.POWER_FIELDS, *(each.field_id for each in COUNTERS if each.field_id))


class Track:
    """The growing samples of one quantity. Written by one thread, read by another."""

    def __init__(self) -> None:
        self._at = array("d")
        self._values = array("d")
        self._ended_at: float | None = None
        self._reason = "not read yet"
        self._refusals = 0
        self.changed_at = -math.inf  # when the value was last seen to differ
        self.changes = 0

    @property
    def ended(self) -> bool:
        return self._ended_at is not None

    @property
    def given_up(self) -> bool:
        return self._refusals >= _GIVE_UP_AFTER

    def add(self, at: float, value: float) -> None:
        if self._values and self._values[-1] != value:
            self.changed_at = at
            self.changes += 1
        self._ended_at = None
        self._reason = ""
        self._refusals = 0
        # The time last: a reader takes as many values as there are times, without a lock that a
        # hung driver call could hold.
        self._values.append(value)
        self._at.append(at)

    def fail(self, at: float, failure: Failure, since_start: float) -> None:
        refused = failure.case in ("unsupported", "no permission")
        self._refusals = self._refusals + 1 if refused else 0
        if self._ended_at is None:
            self._ended_at = at
            never = refused and not self._at
            when = "" if never else f"lost at t={since_start:.1f} s: "
            self._reason = when + failure.reason.removeprefix("lost: ")

    def series(self) -> Series:
        count = len(self._at)
        return Series(self._at[:count], self._values[:count], self._ended_at, self._reason)


class GpuPoll:
    """Reads one GPU again and again. Every quantity fails on its own."""

    def __init__(self, session: Session, identity: Identity, started_at: float) -> None:
        self._session = session
        self._identity = identity
        self._started_at = started_at
        self._found: Found | Failure | None = None
        self._power_kind: PowerKind | None = None
        self._gauges_due = started_at
        self._dropped_at: list[float] = []
        self._tracks = {each.name: Track() for each in (*COUNTERS, *GAUGES)}
        self.joules = self._tracks["joules"]
        self.watts = self._tracks["watts"] = Track()
        self.due = started_at
        self.power_read_at = -math.inf
        self.gauges_read_at = -math.inf
        self.period = Reading(None, "the energy counter's period is not detected yet")

    def trace(self) -> GpuTrace:
        return GpuTrace(
            series={name: track.series() for name, track in self._tracks.items()},
            watts_kind=self._power_kind or q.INSTANT,
            dropped_at=tuple(self._dropped_at),
            doubt=self._found.doubt if isinstance(self._found, Found) else "",
        )

    def is_detecting(self) -> bool:
        return self.period.value is None and not self.joules.given_up

    def poll(self, clock: Clock) -> None:
        """Read whatever is due. Takes as long as the driver takes, and never raises."""
        if not isinstance(self._found, Found):
            self._found = nvml.find_device(self._session, self._identity)
        if isinstance(self._found, Failure):
            at = self.gauges_read_at = clock()
            for track in self._tracks.values():
                track.fail(at, self._found, at - self._started_at)
            self.due = at + _RETRY_SECONDS
            return
        answers = self._found.fields(_FIELDS)
        self._read_all(COUNTERS, self._found, answers, clock)
        self._read_power(self._found, answers, clock)
        now = clock()
        if now >= self._gauges_due:
            self._gauges_due = now + _GAUGE_PAUSE_SECONDS
            self._read_all(GAUGES, self._found, answers, clock)
            self.gauges_read_at = now
        if self.joules.ended and self.watts.ended and self._tracks["sm_hertz"].ended:
            self.due = clock() + _RETRY_SECONDS
        if self.period.value is None and self.joules.changes > MIN_CHANGES:
            self.period = find_period(self.joules.series())

    def _read_all(
        self, quantities: tuple[Quantity, ...], found: Found, answers: Answers, clock: Clock
    ) -> None:
        answered_at = clock()
        for each in quantities:
            track = self._tracks[each.name]
            at, answer = answered_at, answers[each.field_id] if each.field_id else None
            if each.calls and (answer is None or isinstance(answer, Failure)):
                if track.given_up:
                    continue
                answer = found.ask_first(each.calls)
                at = clock()
            if each.member and not isinstance(answer, Failure):
                answer = getattr(answer, each.member)
            self._keep(track, at, answer, each.unit)

    def _read_power(self, found: Found, answers: Answers, clock: Clock) -> None:
        if self.watts.given_up:
            return
        kind = self._power_kind
        if kind is None:
            works = [key for key in q.POWER_FIELDS if not isinstance(answers[key], Failure)]
            kind = q.POWER_FIELDS[works[0]] if works else _name_power_usage(found)
        # One kind for the whole run: instant and averaged samples must not be mixed.
        fields = [key for key, it in q.POWER_FIELDS.items() if it == kind]
        answer = answers[fields[0]] if fields else found.ask("nvmlDeviceGetPowerUsage")
        at = self.power_read_at = clock()
        if not isinstance(answer, Failure):
            if answer <= 0:
                self._dropped_at.append(at)
                return
            self._power_kind = kind
        self._keep(self.watts, at, answer, nvml.WATTS_PER_MILLIWATT)

    def _keep(self, track: Track, at: float, answer: Any, unit: float) -> None:
        if isinstance(answer, Failure):
            track.fail(at, answer, at - self._started_at)
        else:
            track.add(at, answer * unit)


def _name_power_usage(found: Found) -> PowerKind:
    capability = found.ask("nvmlDeviceGetCudaComputeCapability")
    if isinstance(capability, Failure) or tuple(capability) > q.LAST_WITHOUT_AVERAGE:
        return q.POWER_USAGE_AVERAGED
    return q.POWER_USAGE
