"""What does a person see while a script runs under this? One line that is written over."""

from __future__ import annotations

from typing import TextIO

from rich.console import Console
from rich.control import Control
from rich.segment import ControlType


class LiveLine:
    """On a terminal only. The cursor stays in front of it: the script's output goes over it."""

    def __init__(self, stream: TextIO | None) -> None:
        self.is_shown = stream is not None and stream.isatty()
        self._console = Console(file=stream, highlight=False)

    def show(self, text: str) -> None:
        self.clear()
        width = max(1, self._console.width - 1)
        self._console.print(text[:width], style="dim", markup=False, end="\r", soft_wrap=True)

    def clear(self) -> None:
        if self.is_shown:
            erase = (ControlType.ERASE_IN_LINE, 2)
            self._console.control(Control(ControlType.CARRIAGE_RETURN, erase))
