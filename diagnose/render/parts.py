"""What is a report made of? One part for each record that lies in a label's directory."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diagnose.analyze import derive
from diagnose.analyze.optimize import ladder
from diagnose.analyze.optimize.experiment import judge_all
from diagnose.analyze.run import rules
from diagnose.records.experiments import OptimizeRecord
from diagnose.render import store
from diagnose.render.accuracy import report as accuracy_report
from diagnose.render.batch_size import report as batch_size_report
from diagnose.render.link import report as bandwidth_report
from diagnose.render.markdown import escape, prose
from diagnose.render.optimize import report as optimize_report
from diagnose.render.page import Page, render_page
from diagnose.render.run.report import render
from diagnose.render.scaling import report as scaling_report

_HEADING = re.compile(r"^(?=#{1,5} )", re.MULTILINE)


@dataclass(frozen=True)
class Part:
    """How one kind of record is read and told."""

    record_name: str
    question: str  # that it answers, for the index and the top of a joint report
    load: Callable[[Path], Any]
    render: Callable[[Any], str]  # Markdown under one heading of level 1
    answer: Callable[[Any], str]
    figures: tuple[str, ...]  # every one that such a record may have
    figure_names: Callable[[Any], Sequence[str]]  # those that this record has
    # Only writing draws: checking runs without the plotting library.
    draw: Callable[[Any], Mapping[str, bytes]]
    # The part as a page; a report whose parts all have one is sorted into a single page.
    page: Callable[[Any], Page] | None = None


@dataclass(frozen=True)
class Told:
    """A record, and how it is told."""

    part: Part
    record: Any


def _draw_run(record: Any) -> Mapping[str, bytes]:
    from diagnose.render.figures import figures

    return figures(record)


def _draw_optimize(record: OptimizeRecord) -> Mapping[str, bytes]:
    from diagnose.render.figures import save_figure
    from diagnose.render.optimize.launch_figure import draw_launches

    fingerprint, figures = derive.fingerprint(record), {}
    if record.maps:
        draw = functools.partial(draw_launches, record.maps[0])
        figures["launches.svg"] = save_figure(draw, fingerprint)
    if ladder.figure_names(record):
        from diagnose.render.optimize.ladder_figure import draw_ladder

        rungs = ladder.climb(record, judge_all(record))
        figures[ladder.FIGURE_NAME] = save_figure(
            functools.partial(draw_ladder, rungs), fingerprint
        )
    return figures


def _optimize_figures(record: OptimizeRecord) -> Sequence[str]:
    return (*(("launches.svg",) if record.maps else ()), *ladder.figure_names(record))


def _draw_batch_sizes(record: Any) -> Mapping[str, bytes]:
    from diagnose.render.batch_size.figure import batch_size_figures

    return batch_size_figures(record)


def _draw_bandwidth(record: Any) -> Mapping[str, bytes]:
    from diagnose.render.link.figure import bandwidth_figures

    return bandwidth_figures(record)


def _draw_scaling(record: Any) -> Mapping[str, bytes]:
    from diagnose.render.scaling.figure import scaling_figures

    return scaling_figures(record)


def _draw_accuracy(record: Any) -> Mapping[str, bytes]:
    from diagnose.render.accuracy.figure import accuracy_figures

    return accuracy_figures(record)


# In the order in which a job is examined: where the time goes, which line, what helps, what
# several ranks lose, and at last how far the tool itself can be believed.
PARTS: tuple[Part, ...] = (
    Part(
        record_name=store.RECORD_NAME,
        question="Where does the time go?",
        load=store.load,
        render=render,
        answer=lambda record: rules.answer(record, rules.judge(record)),
        figures=("stages.svg", "loader.svg", "power.svg"),
        figure_names=derive.figure_names,
        draw=_draw_run,
    ),
    Part(
        record_name=store.OPTIMIZE_NAME,
        question="Which line is to blame, and what helps?",
        load=store.load_optimize,
        render=optimize_report.render_optimize,
        answer=lambda record: optimize_report.answer(record, judge_all(record)),
        figures=("launches.svg", ladder.FIGURE_NAME),
        figure_names=_optimize_figures,
        draw=_draw_optimize,
    ),
    Part(
        record_name=store.BATCH_SIZE_NAME,
        question="Which batch size?",
        load=store.load_batch_size,
        render=batch_size_report.render_batch_size,
        answer=batch_size_report.answer,
        figures=("batch_size.svg",),
        figure_names=batch_size_report.figure_names,
        draw=_draw_batch_sizes,
    ),
    Part(
        record_name=store.BANDWIDTH_NAME,
        question="How fast is the link between the ranks?",
        load=store.load_bandwidth,
        render=bandwidth_report.render_bandwidth,
        answer=bandwidth_report.answer,
        figures=("bandwidth.svg",),
        figure_names=bandwidth_report.figure_names,
        draw=_draw_bandwidth,
    ),
    Part(
        record_name=store.SCALING_NAME,
        question="Where is scaling lost, and which option gives it back?",
        load=store.load_scaling,
        render=scaling_report.render_scaling,
        answer=scaling_report.answer,
        figures=("scaling.svg",),
        figure_names=scaling_report.figure_names,
        draw=_draw_scaling,
    ),
    Part(
        record_name=store.ACCURACY_NAME,
        question="How often is the diagnosis of a script right?",
        load=store.load_accuracy,
        render=accuracy_report.render_accuracy,
        answer=accuracy_report.answer,
        figures=(accuracy_report.FIGURE_NAME,),
        figure_names=accuracy_report.figure_names,
        draw=_draw_accuracy,
    ),
)


def load_parts(directory: Path) -> list[Told]:
    """Everything that was measured under a label; a damaged record is a StoreError."""
    found = [(part, directory / part.record_name) for part in PARTS]
    return [Told(part, part.load(path)) for part, path in found if path.exists()]


def render_parts(told: Sequence[Told]) -> str:
    """One report. Several parts stand under one title, their answers first."""
    pages = [each.part.page(each.record) for each in told if each.part.page is not None]
    if len(pages) == len(told):
        return render_page(pages)
    if len(told) == 1:
        return told[0].part.render(told[0].record)
    answers = [
        f"- {each.part.question} **{prose(each.part.answer(each.record))}**" for each in told
    ]
    sections = [_HEADING.sub("#", each.part.render(each.record)) for each in told]
    title = f"# {escape(told[0].record.header.label)}"
    return "\n\n".join([title, "\n".join(answers), *sections])
