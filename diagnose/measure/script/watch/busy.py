"""How much of a step does the device work? Counted by the device, or asked of it now and then."""

from __future__ import annotations

import statistics
import time

from diagnose.measure.machine.device import Device
from diagnose.records.header import Reading

# NVML averages over a sixth of a second to a second.
ASKED_EVERY_SECONDS = 0.25
ON_THE_CPU = "on the CPU the script itself is the device's work"
UNKNOWN = "this device does not say how much it works"


class Busy:
    """The share of some plain steps; nothing waits for the device to learn it."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._shares: list[float] = []
        self._seconds = self._worked = 0.0
        self._began = self._asked = time.perf_counter()
        self._counted = device.busy_seconds()
        self._steps, self._retries, self._retried = 0, 0, device.allocator_retries()

    def begin(self) -> None:
        self._began = self._asked = time.perf_counter()
        self._counted = self._device.busy_seconds()
        self._retried = self._device.allocator_retries()

    def note(self) -> None:
        """After a step."""
        self._steps += 1
        now = time.perf_counter()
        if self._counted is None and now - self._asked >= ASKED_EVERY_SECONDS:
            self._asked = now
            share = self._device.utilization()
            self._shares += [] if share is None else [share]

    def end(self) -> None:
        counted = self._device.busy_seconds()
        if counted is not None and self._counted is not None:
            self._worked += counted - self._counted
            self._seconds += time.perf_counter() - self._began
        self._retries += self._device.allocator_retries() - self._retried

    @property
    def retries_per_step(self) -> float:
        """How often the allocator had to free what it keeps, and to wait for the device first."""
        return self._retries / self._steps if self._steps else 0.0

    @property
    def reading(self) -> Reading:
        if self._worked:
            return Reading(self._worked / self._seconds)
        if self._shares:
            return Reading(statistics.fmean(self._shares))
        return Reading(None, ON_THE_CPU if self._device.is_cpu else UNKNOWN)
