"""Which reports are there? The overview of all of them, derived like everything else."""

from __future__ import annotations

from collections.abc import Sequence

from diagnose.analyze import derive
from diagnose.analyze.run.rules import answer, judge
from diagnose.analyze.units import milliseconds
from diagnose.records.run import RunRecord
from diagnose.render import store
from diagnose.render.markdown import Align, Footnotes, Markup, escape, prose, table
from diagnose.render.parts import PARTS, Part, Told

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


def render_index(told: Sequence[Told]) -> str:
    blocks = [
        "# Reports",
        "Written by `make diagnose`, `make optimize` and `make report`; every file here is "
        "derived from the JSON beside it, and `make check` fails if it is not.",
    ]
    if not told:
        return "\n\n".join([*blocks, "There is no report yet."]) + "\n"
    notes = Footnotes()
    for part in PARTS:
        records = [each.record for each in told if each.part is part]
        records.sort(key=lambda record: str(record.header.label))
        if not records:
            continue
        blocks.append(f"## {part.question}")
        if part.record_name == store.RECORD_NAME:
            blocks.append(table(_HEADERS, [_row(record, notes) for record in records], _ALIGN))
        else:
            rows = [_short_row(part, record) for record in records]
            blocks.append(table(("label", "device", "measured", "answer"), rows))
    if notes.lines():
        blocks.append("\n".join(notes.lines()))
    return "\n\n".join(blocks) + "\n"


def _short_row(part: Part, record: store.Record) -> list[str]:
    return [
        _link(record.header.label),
        record.header.machine.device_name,
        record.header.created,
        prose(part.answer(record)),
    ]


def _link(label: str) -> Markup:
    # The link names a directory, and a label that names one needs no escaping.
    return Markup(f"[{escape(label)}]({label}/report.md)")


def _row(record: RunRecord, notes: Footnotes) -> list[str]:
    training = derive.result(record, "training")
    stage = derive.find_stage(record, "training")
    reason = stage.reason if stage and stage.reason else "the training stage was not reached"
    return [
        _link(record.header.label),
        record.header.machine.device_name,
        record.workload.name,
        record.workload.size,
        milliseconds(derive.step_seconds(training)) if training else notes.missing(reason),
        record.header.created,
        prose(answer(record, judge(record))),
    ]
