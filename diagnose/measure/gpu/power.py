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

# NVML averages utilization and power over up to a second; two seconds hold one whole average.
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
        self._period_before = Reading(None, gpus.NOT_WATCHED)
        self._began = time.monotonic()

    @property
    def source(self) -> Source:
        """A stub only counts where its readings enter the record."""
        return "stub" if self._sampler and nvml.is_stub(self._session) else "hardware"

    @property
    def energy_period_seconds(self) -> float:
        """The energy counter's period, or 0 while it is not known."""
        return 0.0 if self._sampler is None else self._period().value or 0.0

    def _period(self) -> Reading:
        """As the sampler sees it; until it has seen enough, as it was before the run."""
        assert self._sampler is not None
        seen = self._sampler.energy_period_seconds()
        return self._period_before if seen.value is None and self._period_before.value else seen

    def watch(self, identities: Sequence[dict[str, Any]]) -> None:
        """Sample the device under test, which is the first; the others are described."""
        self._identities = [from_dict(Identity, each, "identity") for each in identities]
        self._began = time.monotonic()
        if not self._identities:
            return
        tested = self._identities[0]
        before = nvml.answer_within(
            nvml.PATIENCE_SECONDS, lambda: gpus.recall_before(self._session, tested, self._before)
        )
        if isinstance(before, Failure):
            before = gpus.unknown_before(before.reason)
        self._period_before = before.energy_period_seconds
        self._sampler = Sampler(self._session, tested, before.idle_watts)
        self._sampler.start()

    def describe(self, machine: Machine) -> Machine:
        machine = with_gpus(machine, self._session, self._identities, self._salt, self._before)
        return self.with_periods(machine)

    def with_periods(self, machine: Machine) -> Machine:
        """The counter's period is known only after some load."""
        if self._sampler is None or not machine.gpus:
            return machine
        first = replace(machine.gpus[0], energy_period_seconds=self._period())
        return replace(machine, gpus=(first, *machine.gpus[1:]))

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
        return replace(measurement, gpus=(self._sampler.use_during(windows),), gpus_reason="")

    def joules_during(self, windows: Sequence[tuple[float, float]]) -> Reading:
        """In all of them together."""
        if self._sampler is None:
            return Reading(None, "the CPU has no NVML")
        return self._sampler.use_during(windows).joules

    def watts_between(self, begin: float, end: float) -> Reading:
        if self._sampler is None:
            return Reading(None, "the CPU has no NVML")
        return self._sampler.watts_between(begin, end)

    def stop(self) -> None:
        if self._sampler is not None:
            self._sampler.stop()
        self._opened.close()
