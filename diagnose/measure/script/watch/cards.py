"""What should be said of the devices that a script ran on? Idle ones, and one that is slowed down.

Nobody looks at the clocks of a card, or counts cards, while a script is slow.
"""

from __future__ import annotations

import os
import time

import torch

from diagnose.measure.gpu import nvml
from diagnose.measure.gpu.nvml import Failure, Found
from diagnose.measure.gpu.quantities import CLOCK_LIMITS
from diagnose.measure.machine.cuda import read_identities
from diagnose.measure.machine.device import Device

# Of the time that was watched: a card that is held back for less is as fast as it can be.
SMALLEST_SHARE = 0.05


class Clocks:
    """How long a card was held back, from the beginning of this to the question."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._began = time.monotonic()
        self._before = self._read()

    def _read(self) -> dict[str, float] | Failure:
        """Seconds by reason, since the driver was loaded."""
        if self._device.is_cpu:
            return {}
        index = self._device.torch.index
        with nvml.open_session() as session:
            identities = read_identities(torch.get_device_module(self._device.kind))
            found = nvml.find_device(session, identities[index])
            if not isinstance(found, Found):
                return found
            answers = found.fields([each.field_id for each in CLOCK_LIMITS if each.field_id])
        return {
            each.name: answer * each.unit
            for each in CLOCK_LIMITS
            if each.field_id and not isinstance(answer := answers[each.field_id], Failure)
        }

    def note(self) -> str:
        before, after = self._before, self._read()
        if isinstance(after, Failure):
            is_lost = after.case == "lost" and not isinstance(before, Failure)
            return f"the GPU was there before and is not any more: {after.reason}" * is_lost
        if isinstance(before, Failure):
            return ""
        passed = time.monotonic() - self._began
        held = {
            name: after[name] - seconds
            for name, seconds in before.items()
            if name in after and after[name] - seconds >= SMALLEST_SHARE * passed
        }
        if not held:
            return ""
        reasons = ", ".join(f"{name} for {seconds:.1f} s" for name, seconds in held.items())
        return (
            f"the GPU was held back during {passed:.0f} s of this run ({reasons}): check its "
            "cooling and power limit, and compare its steps with those of no other run"
        )


def note_idle_devices(device: Device) -> str:
    """A card that nobody uses is the largest cause of all."""
    if device.is_cpu:
        return ""
    module = torch.get_device_module(device.kind)
    count = int(module.device_count())
    mine = sum(1 for index in range(count) if module.max_memory_allocated(index))
    used = max(mine, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    if used >= count:
        return ""
    return (
        f"torch sees {count} devices and this job uses {used}: the others are idle; "
        f"torchrun --nproc-per-node={count} with DistributedDataParallel would use them all"
    )
