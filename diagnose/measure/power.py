"""What did a stage cost in watts? Joins the sampled GPUs with the slots that were timed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from diagnose.codec import from_dict
from diagnose.measure import gpus, nvml
from diagnose.measure.machine import with_gpus
from diagnose.measure.nvml import Failure, Identity
from diagnose.measure.sampler import Sampler
from diagnose.model import Machine, Measurement, Reading, Source, StageResult

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
        periods = (each.value for each in self._sampler.energy_period_seconds())
        return max((period for period in periods if period is not None), default=0.0)

    def watch(self, identities: Sequence[dict[str, Any]]) -> None:
        """Sample the device under test; the others are described, not blamed."""
        self._identities = [from_dict(Identity, each, "identity") for each in identities]
        self._began = time.monotonic()
        if not self._identities:
            return
        self._sampler = Sampler(self._session, self._identities[:1])
        self._sampler.start()
        if not isinstance(self._session, Failure):
            time.sleep(IDLE_SECONDS)
            self._sampler.mark_idle(self._began, self._began + IDLE_SECONDS)

    def describe(self, machine: Machine) -> Machine:
        machine = with_gpus(machine, self._session, self._identities, self._salt, self._before)
        return self.with_periods(machine)

    def with_periods(self, machine: Machine) -> Machine:
        """The counter's period is known only after some load."""
        if self._sampler is None:
            return machine
        periods = self._sampler.energy_period_seconds()
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
            measurements=tuple(self._with_use(each) for each in result.measurements),
            power=self._sampler.power_between(began, ended, self._began),
        )

    def _with_use(self, measurement: Measurement) -> Measurement:
        assert self._sampler is not None
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
