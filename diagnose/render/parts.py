"""What is a report made of? One part for each record that lies in a label's directory."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diagnose.analyze import derive
from diagnose.records.accuracy import AccuracyRecord
from diagnose.records.batch_size import BatchSizeRecord
from diagnose.records.experiments import OptimizeRecord
from diagnose.records.ranks import BandwidthRecord, ScalingRecord
from diagnose.records.run import RunRecord
from diagnose.records.script import ScriptRecord
from diagnose.render import accuracy, batch_size, figures, link, scaling, script, store
from diagnose.render.closing import closing
from diagnose.render.optimize import figures as optimize_figures
from diagnose.render.optimize import report as optimize_report
from diagnose.render.page import Page, render_page
from diagnose.render.run import export as run_export
from diagnose.render.run import figures as run_figures
from diagnose.render.run import report as run_report

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Part:
    """How one kind of record is shown."""

    kind: type[store.Record]
    question: str  # that it answers, for the index and the top of a joint report
    page: Callable[[Any], Page]
    # By file name, those that this record has. Asking for them imports no plotting library.
    figures: Callable[[Any], Mapping[str, Callable[[], Figure]]]
    # The measurements as CSV, for a file beside the record.
    export: Callable[[Any], str] | None = None

    @property
    def record_name(self) -> str:
        return store.NAMES[self.kind]


@dataclass(frozen=True)
class Told:
    """A record, and how it is shown."""

    part: Part
    record: Any

    @functools.cached_property
    def page(self) -> Page:
        return replace(self.part.page(self.record), question=self.part.question)

    def figure_names(self) -> Sequence[str]:
        return tuple(self.part.figures(self.record))

    def draw_all(self) -> Mapping[str, bytes]:
        fingerprint = derive.fingerprint(self.record)
        drawn = self.part.figures(self.record).items()
        return {name: figures.draw(figure, fingerprint) for name, figure in drawn}

    def exports(self) -> Mapping[str, str]:
        if self.part.export is None:
            return {}
        return {f"{Path(self.part.record_name).stem}.csv": self.part.export(self.record)}


# In the order in which a job is examined: where the time goes, which line, what helps, what
# several ranks lose, and at last how far the tool itself can be believed.
PARTS: tuple[Part, ...] = (
    Part(
        RunRecord,
        "Where does the time go?",
        run_report.page,
        run_figures.figures,
        run_export.export,
    ),
    Part(ScriptRecord, "Why is the script slow?", script.page, script.figures),
    Part(
        OptimizeRecord,
        "Which line is to blame, and what helps?",
        optimize_report.page,
        optimize_figures.figures,
    ),
    Part(BatchSizeRecord, "Which batch size?", batch_size.page, batch_size.figures),
    Part(
        BandwidthRecord,
        "How fast is the link between the ranks?",
        link.page,
        link.figures,
    ),
    Part(
        ScalingRecord,
        "Where is scaling lost, and which option gives it back?",
        scaling.page,
        scaling.figures,
    ),
    Part(
        AccuracyRecord,
        "How often is the diagnosis of a script right?",
        accuracy.page,
        accuracy.figures,
    ),
)


def load_parts(directory: Path) -> list[Told]:
    """Everything that was measured under a label; a damaged record is a StoreError."""
    found = [(part, directory / part.record_name) for part in PARTS]
    return [Told(part, store.load(path, part.kind)) for part, path in found if path.exists()]


def render_parts(told: Sequence[Told]) -> str:
    """One report: the pages of all records as one, closed by what they share."""
    pages = [each.page for each in told]
    return render_page(pages, closing(pages))
