"""What does a person see while it runs? A progress line with the running figure, on stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from rich.console import Console as RichConsole
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from diagnose.measure.session import Watcher
from diagnose.measure.stages import STAGES, Stage
from diagnose.records.experiments import Comparison
from diagnose.records.run import StageResult


class Console(Watcher):
    """A live bar on a terminal; one line per stage or experiment in a log file."""

    def __init__(self) -> None:
        # A daemon may have no stderr at all.
        stream = sys.stderr if sys.stderr is not None else open(os.devnull, "w")  # noqa: SIM115
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[figure]}", style="dim"),
            TimeElapsedColumn(),
            console=RichConsole(file=stream),
            transient=True,
            disable=not stream.isatty(),
        )
        self._task = self._progress.add_task("starting", total=len(STAGES), figure="")

    def __enter__(self) -> Console:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._progress.stop()

    def opening(self) -> None:
        self._progress.update(self._task, description="loading torch and the workload")

    def stage_begins(self, stage: Stage) -> None:
        done = [each.key for each in STAGES].index(stage.key)
        self._progress.update(self._task, description=stage.title, completed=done, figure="")

    def stage_progress(self, name: str, slots: int, seconds_per_step: float) -> None:
        figure = f"{name}: {seconds_per_step * 1e3:.2f} ms, slot {slots}"
        self._progress.update(self._task, figure=figure)

    def experiment_begins(self, key: str, done: int, planned: int) -> None:
        self._progress.update(self._task, description=key, completed=done, total=planned, figure="")

    def experiment_ended(self, key: str, comparisons: Sequence[Comparison]) -> None:
        broken = [each for each in comparisons if each.status != "done"]
        ending = "".join(f": {each.status}, {each.reason}" for each in broken)
        self._progress.console.print(
            f"{key}{ending}", markup=False, highlight=False, soft_wrap=True
        )

    def stage_ended(self, result: StageResult) -> None:
        ending = "" if result.status == "done" else f": {result.status}, {result.reason}"
        line = f"{result.title} ({result.seconds:.0f} s){ending}"
        self._progress.console.print(line, markup=False, highlight=False, soft_wrap=True)
