"""How late is it for the NVML stand-in? As late as a test says, to the bit.

For code that runs against the stub: whatever polls it through this clock sees known values.
"""

from __future__ import annotations

import ctypes

from diagnose.measure.gpu.nvml import Failure, Session

TICK_SECONDS = 1 / 32  # a power of two: sums of it are exact


class SimulatedTime:
    """A clock that stands still until it is told to move, and the stub's sensors with it."""

    def __init__(self, session: Session | Failure) -> None:
        assert isinstance(session, Session)
        self._hold = session.library.nvmlLib.diagnose_nvml_stub_hold_uptime
        self._hold.argtypes, self._hold.restype = [ctypes.c_double], None
        self._now = 0.0
        self._hold(self._now)

    def clock(self) -> float:
        return self._now

    def tick(self, _: float = TICK_SECONDS) -> None:
        """One tick, however long a pause was asked for."""
        self._now += TICK_SECONDS
        self._hold(self._now)
