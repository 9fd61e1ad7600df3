"""What must be made sure of before a script on an accelerator is changed? Its memory."""

from __future__ import annotations

from diagnose.measure.machine.device import Device

# Of what is free: the rest goes to what the change itself needs, and to memory that is scattered.
_USABLE = 0.8


def has_room(device: Device, times: int) -> bool:
    """Whether what a step needs on top of what stays would fit so many times more.

    The script would not survive the attempt: its own loop would be told that memory ran out.
    """
    if device.is_cpu:
        return True
    free, needed = device.free_bytes(), device.step_bytes()
    return free is None or needed is None or times * needed <= _USABLE * free
