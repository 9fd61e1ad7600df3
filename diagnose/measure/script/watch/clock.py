"""How long does a step take on a device that works behind the host? Between events, undrained.

The host may be many steps ahead of the device, so that its own clock tells how fast it queues and
not how fast the job is. An event is queued at the end of each step and carries the device's time;
nothing waits for it until the last one is read. Where the host is the slower of the two, an event
happens as soon as it is queued, so that it tells the host's time.
"""

from __future__ import annotations

from diagnose.measure.machine.device import Device


class StepClock:
    """The steps from `begin` on; on the CPU, which works when it is told to, it stays empty."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._stamps: list[object] = []

    def begin(self) -> None:
        """At the end of a step: the next one is the first that counts."""
        self._stamps = []
        self.note()

    def note(self) -> None:
        """At the end of a step."""
        if not self._device.is_cpu:
            self._stamps.append(self._device.stamp())

    def read(self) -> tuple[float, ...]:
        """Seconds of each step; waits for the last one. Empty where events carry no time."""
        if len(self._stamps) < 2:
            return ()
        self._device.synchronize()
        return self._device.between(self._stamps) or ()
