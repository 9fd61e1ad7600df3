"""What does a person see while it runs? A live bar or line on a terminal, a few lines in a log."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from typing import TextIO

from rich.console import Console
from rich.control import Control
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.segment import ControlType

from diagnose.measure.session import Watcher
from diagnose.measure.stages import STAGES, Stage
from diagnose.records.experiments import Comparison
from diagnose.records.run import StageResult

# How often a count is written to a log file, where a line cannot be written over.
LOG_SECONDS = 10.0


class Progress(Watcher):
    """On stderr; standard output is for the answer."""

    def __init__(self) -> None:
        # A daemon may have no stderr at all.
        stream = sys.stderr if sys.stderr is not None else open(os.devnull, "w")  # noqa: SIM115
        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[figure]}", style="dim"),
            TimeElapsedColumn(),
            console=Console(file=stream),
            transient=True,
            disable=not stream.isatty(),
        )
        self._task = self._bar.add_task("starting", total=None, figure="")
        self._logged = time.monotonic()

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def show(self, what: str) -> None:
        """What is being done now."""
        self._bar.update(self._task, description=what, figure="")

    def advance(self, done: int, planned: int) -> None:
        self._bar.update(self._task, completed=done, total=planned)

    def say(self, line: str) -> None:
        """A line that stays."""
        self._bar.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def count(self, what: str, done: int, planned: int, seconds: float) -> None:
        """Samples, samples per second and the time that is left."""
        rate = done / max(seconds, 1e-9)
        left = f"{rate:.3g} samples/s, {(planned - done) / rate:.0f} s left"
        line = f"{what}{done} of {planned} samples"
        self._bar.update(self._task, description=line, completed=done, total=planned, figure=left)
        now = time.monotonic()
        if self._bar.disable and (done == planned or now - self._logged > LOG_SECONDS):
            self._logged = now
            self.say(f"{line}, {left}")

    def opening(self) -> None:
        self.show("loading torch and the workload")

    def stage_begins(self, stage: Stage) -> None:
        self.show(stage.title)
        self.advance([each.key for each in STAGES].index(stage.key), len(STAGES))

    def stage_progress(self, name: str, slots: int, seconds_per_step: float) -> None:
        figure = f"{name}: {seconds_per_step * 1e3:.2f} ms, slot {slots}"
        self._bar.update(self._task, figure=figure)

    def stage_ended(self, result: StageResult) -> None:
        self.say(f"{result.title} ({result.seconds:.0f} s){_ending(result)}")

    def experiment_begins(self, key: str, done: int, planned: int) -> None:
        self.show(key)
        self.advance(done, planned)

    def experiment_ended(self, key: str, comparisons: Sequence[Comparison]) -> None:
        self.say(key + "".join(map(_ending, comparisons)))


def _ending(result: StageResult | Comparison) -> str:
    return "" if result.status == "done" else f": {result.status}, {result.reason}"


class LiveLine:
    """While a script runs. The cursor stays in front of it: the script's output goes over it."""

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
