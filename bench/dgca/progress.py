"""What does a person see, and what does the log keep? A bar or lines, and one JSON per step."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from bench.dgca.evaluate import Metrics, describe
from diagnose.records.files import write_file

LOG = "log.jsonl"


class Journal:
    """A live bar on a terminal, one line per reading elsewhere; only the first process speaks."""

    def __init__(self, output: Path, first_step: int, end_step: int, speaks: bool) -> None:
        self._file = output / LOG
        self._speaks = speaks
        self._end = end_step
        self._seen = first_step
        self._since = time.perf_counter()
        self._bar = Progress(
            TextColumn("step {task.completed} of {task.total}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[figure]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
            disable=not (speaks and sys.stderr.isatty()),
        )
        self._task = self._bar.add_task("training", total=end_step, completed=first_step, figure="")

    def __enter__(self) -> Journal:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def forget_after(self, step: int) -> None:
        """A resumed run takes its later steps again; what an earlier try wrote of them goes."""
        if self._speaks and self._file.exists():
            lines = self._file.read_text("utf-8").splitlines(keepends=True)
            kept = "".join(line for line in lines if _is_until(step, line))
            write_file(self._file, lambda part: part.write_text(kept, "utf-8"))

    def restart_clock(self) -> None:
        """Time that went into something else than training does not count as training."""
        self._since = time.perf_counter()

    def tell_losses(self, step: int, losses: Sequence[float]) -> None:
        if not self._speaks or not losses:
            return
        rate = (step - self._seen) / max(time.perf_counter() - self._since, 1e-9)
        finite = [loss for loss in losses if math.isfinite(loss)]
        mean = f"{sum(finite) / len(finite):.4f}" if finite else "not finite"
        figure = f"{rate:.2f} it/s  loss {mean}"
        self._bar.update(self._task, completed=step, figure=figure)
        if self._bar.disable:
            print(f"step {step} of {self._end}  {figure}", file=sys.stderr, flush=True)
        first = step - len(losses) + 1
        self._append(
            {"step": first + place, "loss": loss if math.isfinite(loss) else None}
            for place, loss in enumerate(losses)
        )
        self._seen, self._since = step, time.perf_counter()

    def tell_metrics(self, name: str, step: int, metrics: Metrics) -> None:
        if self._speaks:
            self.say(f"{name} at step {step}: {describe(metrics)}")
            self._append([{"step": step, name: asdict(metrics)}])

    def say(self, text: str) -> None:
        """A result: to stdout, so that it survives the bar and can be piped."""
        if self._speaks:
            self._bar.stop()
            print(text, flush=True)
            self._bar.start()

    def _append(self, records: Iterable[Mapping[str, object]]) -> None:
        with self._file.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(each, allow_nan=False) + "\n" for each in records)


def _is_until(step: int, line: str) -> bool:
    try:
        return bool(json.loads(line)["step"] <= step)
    except (ValueError, KeyError, TypeError):
        return False  # the line during which a run was killed
