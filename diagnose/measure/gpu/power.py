"""What did a stage cost in watts? Joins the sampled GPUs with the slots that were timed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from diagnose.measure.gpu import describe as gpus
from diagnose.measure.gpu import nvml
from diagnose.measure.gpu.nvml import Failure, Identity
from diagnose.measure.gpu.sampler import Sampler
from diagnose.measure.machine.describe import with_gpus
from diagnose.records.codec import from_dict
from diagnose.records.header import Machine, Reading, Source
from diagnose.records.run import Measurement, StageResult

# NVML averages utilisation and power over up to a second; two seconds hold one whole average.
IDLE_SECONDS = 2.0


class PowerMeter:
    """NVML for one run. Opened before the measuring process, to see who else is there."""

    def __init__(self, salt: str) -> None:
        self._salt = salt
        self._opened = ExitStack()
        self._session = self._opened.enter_context(nvml.open_session())
        self._before = gpus.observe_before(self._session, IDLE_SECONDS)
        self._identities: Sequence[Identity] = ()
        self._watched_before: Sequence[gpus.Before] = ()
        self._sampler: Sampler | None = None
        self._began = time.monotonic()

    @property
    def source(self) -> Source:
        """A stub only counts where its readings enter the record."""
        return "stub" if self._sampler and nvml.is_stub(self._session) else "hardware"

    @property
    def energy_period_seconds(self) -> float:
        """The slowest counter's period, or 0 while none is known."""
        if self._sampler is None:
            return 0.0
        periods = (each.value for each in self._periods())
        return max((period for period in periods if period is not None), default=0.0)

    def _periods(self) -> Sequence[Reading]:
        """As the sampler sees them; until it has seen enough, as they were before the run."""
        assert self._sampler is not None
        return [
            seen if seen.value is not None or earlier.value is None else earlier
            for seen, earlier in zip(
                self._sampler.energy_period_seconds(),
                (each.energy_period_seconds for each in self._watched_before),
                strict=True,
            )
        ]

    def watch(self, identities: Sequence[dict[str, Any]]) -> None:
        """Sample the device under test; the others are described, not blamed."""
        self._identities = [from_dict(Identity, each, "identity") for each in identities]
        self._began = time.monotonic()
        if not self._identities:
            return
        sampled = self._identities[:1]
        self._watched_before = [self._recall(each) for each in sampled]
        idle_watts = [each.idle_watts for each in self._watched_before]
        self._sampler = Sampler(self._session, sampled, idle_watts)
        self._sampler.start()

    def _recall(self, identity: Identity) -> gpus.Before:
        recalled = nvml.answer_within(
            nvml.PATIENCE_SECONDS,
            lambda: gpus.recall_before(self._session, identity, self._before),
        )
        return gpus.unknown_before(recalled.reason) if isinstance(recalled, Failure) else recalled

    def describe(self, machine: Machine) -> Machine:
        machine = with_gpus(machine, self._session, self._identities, self._salt, self._before)
        return self.with_periods(machine)

    def with_periods(self, machine: Machine) -> Machine:
        """The counter's period is known only after some load."""
        if self._sampler is None:
            return machine
        periods = self._periods()
        described = [
            replace(gpu, energy_period_seconds=period)
            for gpu, period in zip(machine.gpus, periods, strict=False)
        ]
        return replace(machine, gpus=(*described, *machine.gpus[len(described) :]))

    def attach(self, result: StageResult, began: float) -> StageResult:
        """The stage with what NVML saw during its slots."""
        if self._sampler is None:
            return result
        ended = time.monotonic()
        return replace(
            result,
            measurements=tuple(self.with_use(each) for each in result.measurements),
            power=self._sampler.power_between(began, ended, self._began),
        )

    def with_use(self, measurement: Measurement) -> Measurement:
        """The measurement with what NVML saw during its slots."""
        if self._sampler is None:
            return measurement
        timing = measurement.timing
        windows = [
            (start, start + seconds)
            for start, seconds in zip(timing.slot_starts, timing.slot_seconds, strict=True)
        ]
        return replace(measurement, gpus=self._sampler.use_during(windows), gpus_reason="")

    def watts_between(self, begin: float, end: float) -> Reading:
        if self._sampler is None:
            return Reading(None, "the CPU has no NVML")
        return self._sampler.watts_between(begin, end)[0]

    def stop(self) -> None:
        if self._sampler is not None:
            self._sampler.stop()
        self._opened.close()
