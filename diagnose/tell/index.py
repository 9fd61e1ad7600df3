"""Which reports are there? The overview of all runs, derived like everything else."""

from __future__ import annotations

from collections.abc import Sequence

from diagnose.model import OptimizeRecord, RunRecord
from diagnose.tell import derive
from diagnose.tell.experiment import judge_all
from diagnose.tell.markdown import Align, Footnotes, Markup, escape, prose, table
from diagnose.tell.optimize_report import answer as optimize_answer
from diagnose.tell.rules import answer, judge
from diagnose.tell.units import milliseconds

_HEADERS = (
    "label",
    "device",
    "workload",
    "size",
    Markup("training step ms [95 % interval]"),
    "measured",
    "answer",
)
_ALIGN: tuple[Align, ...] = ("left", "left", "left", "left", "right", "left", "left")


def render_index(records: Sequence[RunRecord], optimized: Sequence[OptimizeRecord] = ()) -> str:
    blocks = [
        "# Reports",
        "Written by `make diagnose`, `make optimize` and `make report`; every file here is "
        "derived from the JSON beside it, and `make check` fails if it is not.",
    ]
    notes = Footnotes()
    rows = [_row(record, notes) for record in sorted(records, key=lambda each: each.label)]
    blocks.append(table(_HEADERS, rows, _ALIGN) if rows else "There is no report yet.")
    if notes.lines():
        blocks.append("\n".join(notes.lines()))
    if optimized:
        blocks += ["## What helps", _optimized_table(optimized)]
    return "\n\n".join(blocks) + "\n"


def _optimized_table(records: Sequence[OptimizeRecord]) -> str:
    rows = [
        [
            Markup(f"[{escape(each.label)}]({each.label}/optimize.md)"),
            each.machine.device_name,
            each.workload.name,
            each.created,
            prose(optimize_answer(each, judge_all(each))),
        ]
        for each in sorted(records, key=lambda each: each.label)
    ]
    return table(("label", "device", "workload", "measured", "answer"), rows)


def _row(record: RunRecord, notes: Footnotes) -> list[str]:
    label = escape(record.label)
    training = derive.result(record, "training")
    stage = derive.find_stage(record, "training")
    reason = stage.reason if stage and stage.reason else "the training stage was not reached"
    return [
        # The link names a directory, and a label that names one needs no escaping.
        Markup(f"[{label}]({record.label}/report.md)"),
        record.machine.device_name,
        record.workload.name,
        record.workload.size,
        milliseconds(derive.step_seconds(training)) if training else notes.missing(reason),
        record.created,
        prose(answer(record, judge(record))),
    ]
