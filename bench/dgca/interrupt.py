"""How does Ctrl-C end a run without losing it? The first asks, the second insists."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)  # torchrun sends the second one to its processes


class Interrupt:
    """Inside the block a signal only raises a flag; training looks at it after each step."""

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interrupt:
        self._before = {each: signal.signal(each, self._handle) for each in _SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
