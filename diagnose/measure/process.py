"""What does a measuring process ask of the system? To go with its parent, and to wake on time."""

from __future__ import annotations

import ctypes
import signal
import sys

_PR_SET_PDEATHSIG = 1
_PR_SET_TIMERSLACK = 29


def die_with_parent() -> None:
    """A killed parent must not leave a child on the device."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def wake_on_time() -> None:
    """For this thread: the system may else add 50 µs to every sleep, to wake several at once."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1)
