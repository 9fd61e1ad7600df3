"""What is read from one GPU at one moment, and what is done when a reading fails?"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from diagnose.measure.gpu import nvml
from diagnose.measure.gpu.energy import MIN_CHANGES, Series, find_period
from diagnose.measure.gpu.nvml import Failure, Found, Identity, Session
from diagnose.measure.gpu.use import CLOCK_LIMITS, INSTANT, GpuTrace, PowerKind
from diagnose.records.header import Reading

Clock = Callable[[], float]
Answers = dict[tuple[int, int], float | Failure]

# Until a counter's period is known it is polled faster than any known counter moves.
FAST_SECONDS = 0.02

_SECONDS_PER_NANOSECOND = 1e-9
# Drivers were seen to answer "not supported" now and then when polled fast, so once is not enough.
_GIVE_UP_AFTER = 5
# Clocks and temperatures move slowly, and every question costs the driver time.
_GAUGE_PAUSE_SECONDS = 0.1
_RETRY_SECONDS = 1.0  # a lost GPU rarely returns; asking more often would only fill its log

_INSTANT, _AVERAGE, _ENERGY = 186, 185, 83
# In the order of preference. The GPU alone comes before the module with its processor.
_POWER_FIELDS = (
    ((_INSTANT, nvml.GPU_SCOPE), INSTANT),
    ((_AVERAGE, nvml.GPU_SCOPE), PowerKind("1 s averages", 1.0)),
    ((_INSTANT, nvml.MODULE_SCOPE), PowerKind("module: processor and GPU")),
    ((_AVERAGE, nvml.MODULE_SCOPE), PowerKind("module: processor and GPU, 1 s averages", 1.0)),
)
# nvml.h of nvmlDeviceGetPowerUsage: averaged over 1 s since Ampere, except for GA100, whose
# compute capability is the lowest of its generation.
_POWER_USAGE = PowerKind("the driver's power usage")
_POWER_USAGE_AVERAGED = PowerKind("the driver's power usage, 1 s averages", 1.0)
_LAST_WITHOUT_AVERAGE = (8, 0)
_LIMIT_FIELDS = tuple((limit.field_id, nvml.GPU_SCOPE) for limit in CLOCK_LIMITS)
_ENERGY_FIELD = (_ENERGY, nvml.GPU_SCOPE)
_FIELDS = (*(key for key, _ in _POWER_FIELDS), *_LIMIT_FIELDS, _ENERGY_FIELD)


@dataclass(frozen=True)
class _Gauge:
    """A quantity that has a call of its own."""

    name: str
    call: str
    arguments: tuple[int, ...] = ()
    member: str = ""  # of the structure that the call returns
    unit: float = 1.0


_GAUGES = (
    _Gauge("power_limit_watts", "nvmlDeviceGetPowerManagementLimit", unit=nvml.WATTS_PER_MILLIWATT),
    _Gauge(
        "utilization",
        "nvmlDeviceGetUtilizationRates",
        member="gpu",
        unit=nvml.SHARE_PER_PERCENT,
    ),
    _Gauge("sm_hertz", "nvmlDeviceGetClockInfo", (1,), unit=nvml.HERTZ_PER_MEGAHERTZ),
    _Gauge("memory_hertz", "nvmlDeviceGetClockInfo", (2,), unit=nvml.HERTZ_PER_MEGAHERTZ),
    _Gauge("celsius", "nvmlDeviceGetTemperature", (0,)),
    _Gauge("pcie_generation", "nvmlDeviceGetCurrPcieLinkGeneration"),
    _Gauge("pcie_width", "nvmlDeviceGetCurrPcieLinkWidth"),
)


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
        self.due = started_at
        self.dropped_at: list[float] = []
        self.power_read_at = -math.inf
        self.gauges_read_at = -math.inf
        self.period = Reading(None, "the energy counter's period is not detected yet")
        self.joules = Track()
        self.watts = Track()
        self._limits = {limit.name: Track() for limit in CLOCK_LIMITS}
        self._clock_reasons = Track()
        self._memory = Track()
        self._gauges = {gauge.name: Track() for gauge in _GAUGES}

    def trace(self) -> GpuTrace:
        return GpuTrace(
            joules=self.joules.series(),
            watts=self.watts.series(),
            watts_kind=self._power_kind or INSTANT,
            memory_bytes=self._memory.series(),
            clock_reasons=self._clock_reasons.series(),
            throttle_seconds={name: track.series() for name, track in self._limits.items()},
            dropped_at=tuple(self.dropped_at),
            doubt=self._found.doubt if isinstance(self._found, Found) else "",
            **{name: track.series() for name, track in self._gauges.items()},
        )

    def is_detecting(self) -> bool:
        return self.period.value is None and not self.joules.given_up

    def poll(self, clock: Clock) -> None:
        """Read whatever is due. Takes as long as the driver takes, and never raises."""
        if not isinstance(self._found, Found):
            self._found = nvml.find_handle(self._session, self._identity)
        if isinstance(self._found, Failure):
            self._fail_all(clock(), self._found)
            self.gauges_read_at = clock()
            self.due = clock() + _RETRY_SECONDS
            return
        self._poll_fields(self._found.handle, clock)
        now = clock()
        if now >= self._gauges_due:
            self._gauges_due = now + _GAUGE_PAUSE_SECONDS
            self._poll_gauges(self._found.handle, clock)
            self.gauges_read_at = now
        if self.joules.ended and self.watts.ended and self._gauges["sm_hertz"].ended:
            self.due = clock() + _RETRY_SECONDS
        if self.period.value is None and self.joules.changes > MIN_CHANGES:
            self.period = find_period(self.joules.series())

    def _poll_fields(self, handle: Any, clock: Clock) -> None:
        answers = self._session.fields(handle, _FIELDS)
        at = clock()
        for limit, key in zip(CLOCK_LIMITS, _LIMIT_FIELDS, strict=True):
            self._keep(self._limits[limit.name], at, answers[key], _SECONDS_PER_NANOSECOND)
        energy = answers[_ENERGY_FIELD]
        if isinstance(energy, Failure) and not self.joules.given_up:
            energy = self._session.ask("nvmlDeviceGetTotalEnergyConsumption", handle)
            at = clock()
        self._keep(self.joules, at, energy, nvml.JOULES_PER_MILLIJOULE)
        if not self.watts.given_up:
            answer, kind = self._read_power(handle, answers)
            self.power_read_at = clock()
            self._keep_watts(self.power_read_at, answer, kind)

    def _read_power(self, handle: Any, answers: Answers) -> tuple[float | Failure, PowerKind]:
        for key, kind in _POWER_FIELDS:
            # One kind for the whole run: instant and averaged samples must not be mixed.
            works = self._power_kind is None and not isinstance(answers[key], Failure)
            if works or self._power_kind == kind:
                return answers[key], kind
        answer = self._session.ask("nvmlDeviceGetPowerUsage", handle)
        return answer, self._power_kind or self._name_power_usage(handle)

    def _name_power_usage(self, handle: Any) -> PowerKind:
        capability = self._session.ask("nvmlDeviceGetCudaComputeCapability", handle)
        if isinstance(capability, Failure) or tuple(capability) > _LAST_WITHOUT_AVERAGE:
            return _POWER_USAGE_AVERAGED
        return _POWER_USAGE

    def _keep_watts(self, at: float, answer: float | Failure, kind: PowerKind) -> None:
        if not isinstance(answer, Failure) and answer <= 0:
            self.dropped_at.append(at)
            return
        if not isinstance(answer, Failure):
            self._power_kind = kind
        self._keep(self.watts, at, answer, nvml.WATTS_PER_MILLIWATT)

    def _poll_gauges(self, handle: Any, clock: Clock) -> None:
        for gauge in _GAUGES:
            track = self._gauges[gauge.name]
            if not track.given_up:
                answer = self._session.ask(gauge.call, handle, *gauge.arguments)
                if gauge.member and not isinstance(answer, Failure):
                    answer = getattr(answer, gauge.member)
                self._keep(track, clock(), answer, gauge.unit)
        if not self._memory.given_up:
            memory = self._session.memory(handle)
            used = memory if isinstance(memory, Failure) else memory.used_bytes
            self._keep(self._memory, clock(), used)
        if not self._clock_reasons.given_up:
            answer = self._session.ask("nvmlDeviceGetCurrentClocksEventReasons", handle)
            if isinstance(answer, Failure):
                # The name of the same question before driver 535.
                answer = self._session.ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
            self._keep(self._clock_reasons, clock(), answer)

    def _keep(self, track: Track, at: float, answer: Any, unit: float = 1.0) -> None:
        if isinstance(answer, Failure):
            track.fail(at, answer, at - self._started_at)
        else:
            track.add(at, answer * unit)

    def _fail_all(self, at: float, failure: Failure) -> None:
        tracks = (self.joules, self.watts, self._clock_reasons, self._memory)
        for track in (*tracks, *self._limits.values(), *self._gauges.values()):
            track.fail(at, failure, at - self._started_at)
