"""What is a report made of? One part for each record that lies in a label's directory."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diagnose.analyze import derive
from diagnose.analyze.optimize import ladder
from diagnose.analyze.optimize.experiment import judge_all
from diagnose.records.accuracy import AccuracyRecord
from diagnose.records.batch_size import BatchSizeRecord
from diagnose.records.experiments import OptimizeRecord
from diagnose.records.ranks import BandwidthRecord, ScalingRecord
from diagnose.records.run import RunRecord
from diagnose.render import accuracy, figures, link, scaling, store
from diagnose.render.batch_size import report as batch_size_report
from diagnose.render.closing import closing
from diagnose.render.markdown import escape, prose
from diagnose.render.optimize import report as optimize_report
from diagnose.render.page import Page, render_page
from diagnose.render.run import export as run_export
from diagnose.render.run import figures as run_figures
from diagnose.render.run import report as run_report

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_HEADING = re.compile(r"^(?=#{1,5} )", re.MULTILINE)


def _no_figures(_: Any) -> Mapping[str, Callable[[], Figure]]:
    return {}


@dataclass(frozen=True)
class Part:
    """How one kind of record is shown."""

    kind: type[store.Record]
    question: str  # that it answers, for the index and the top of a joint report
    page: Callable[[Any], Page] | None = None
    # By file name, those that this record has. Asking for them imports no plotting library.
    figures: Callable[[Any], Mapping[str, Callable[[], Figure]]] = _no_figures
    # The measurements as CSV, for a file beside the record.
    export: Callable[[Any], str] | None = None
    # Of verbs that have no page yet.
    render: Callable[[Any], str] | None = None
    answer: Callable[[Any], str] | None = None
    figure_names: Any = None
    draw: Any = None

    @property
    def record_name(self) -> str:
        return store.NAMES[self.kind]


@dataclass(frozen=True)
class Told:
    """A record, and how it is shown."""

    part: Part
    record: Any

    @functools.cached_property
    def page(self) -> Page | None:
        if self.part.page is None:
            return None
        return replace(self.part.page(self.record), question=self.part.question)

    @property
    def answer(self) -> str:
        if self.page is not None:
            return self.page.answer
        assert self.part.answer is not None
        return self.part.answer(self.record)

    def figure_names(self) -> Sequence[str]:
        if self.part.figure_names is not None:
            return tuple(self.part.figure_names(self.record))
        return tuple(self.part.figures(self.record))

    def draw_all(self) -> Mapping[str, bytes]:
        if self.part.draw is not None:
            return dict(self.part.draw(self.record))
        fingerprint = derive.fingerprint(self.record)
        drawn = self.part.figures(self.record).items()
        return {name: figures.draw(figure, fingerprint) for name, figure in drawn}

    def exports(self) -> Mapping[str, str]:
        if self.part.export is None:
            return {}
        return {f"{Path(self.part.record_name).stem}.csv": self.part.export(self.record)}

    def render(self) -> str:
        if self.page is not None:
            return render_page([self.page], closing([self.page]))
        assert self.part.render is not None
        return self.part.render(self.record)


def _draw_optimize(record: OptimizeRecord) -> Mapping[str, bytes]:
    from diagnose.render.optimize.launch_figure import draw_launches

    fingerprint, drawn = derive.fingerprint(record), {}
    if record.maps:
        draw = functools.partial(draw_launches, record.maps[0])
        drawn["launches.svg"] = figures.draw(draw, fingerprint)
    if ladder.figure_names(record):
        from diagnose.render.optimize.ladder_figure import draw_ladder

        rungs = ladder.climb(record, judge_all(record))
        drawn[ladder.FIGURE_NAME] = figures.draw(functools.partial(draw_ladder, rungs), fingerprint)
    return drawn


def _optimize_figures(record: OptimizeRecord) -> Sequence[str]:
    return (*(("launches.svg",) if record.maps else ()), *ladder.figure_names(record))


def _draw_batch_sizes(record: Any) -> Mapping[str, bytes]:
    from diagnose.render.batch_size.figure import batch_size_figures

    return batch_size_figures(record)


# In the order in which a job is examined: where the time goes, which line, what helps, what
# several ranks lose, and at last how far the tool itself can be believed.
PARTS: tuple[Part, ...] = (
    Part(
        kind=RunRecord,
        question="Where does the time go?",
        page=run_report.page,
        figures=run_figures.figures,
        export=run_export.export,
    ),
    Part(
        kind=OptimizeRecord,
        question="Which line is to blame, and what helps?",
        render=optimize_report.render_optimize,
        answer=lambda record: optimize_report.answer(record, judge_all(record)),
        figure_names=_optimize_figures,
        draw=_draw_optimize,
    ),
    Part(
        kind=BatchSizeRecord,
        question="Which batch size?",
        render=batch_size_report.render_batch_size,
        answer=batch_size_report.answer,
        figure_names=batch_size_report.figure_names,
        draw=_draw_batch_sizes,
    ),
    Part(
        kind=BandwidthRecord,
        question="How fast is the link between the ranks?",
        page=link.page,
        figures=link.figures,
    ),
    Part(
        kind=ScalingRecord,
        question="Where is scaling lost, and which option gives it back?",
        page=scaling.page,
        figures=scaling.figures,
    ),
    Part(
        kind=AccuracyRecord,
        question="How often is the diagnosis of a script right?",
        page=accuracy.page,
        figures=accuracy.figures,
    ),
)


def load_parts(directory: Path) -> list[Told]:
    """Everything that was measured under a label; a damaged record is a StoreError."""
    found = [(part, directory / part.record_name) for part in PARTS]
    return [Told(part, store.load(path, part.kind)) for part, path in found if path.exists()]


def render_parts(told: Sequence[Told]) -> str:
    """One report: the pages of all records as one, closed by what they share."""
    pages = [each.page for each in told if each.page is not None]
    if len(pages) == len(told):
        return render_page(pages, closing(pages))
    if len(told) == 1:
        return told[0].render()
    answers = [f"- {each.part.question} **{prose(each.answer)}**" for each in told]
    sections = [_HEADING.sub("#", each.render()) for each in told]
    title = f"# {escape(told[0].record.header.label)}"
    return "\n\n".join([title, "\n".join(answers), *sections])
