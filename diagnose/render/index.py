"""Which reports are there? The overview of all of them, derived like everything else."""

from __future__ import annotations

from collections.abc import Sequence

from diagnose.render.markdown import Markup, escape
from diagnose.render.parts import PARTS, Told
from diagnose.render.table import Column, table

_COLUMNS: tuple[Column[Told], ...] = (
    # The link names a directory, and a label that names one needs no escaping.
    Column(
        "label",
        lambda told: Markup(
            f"[{escape(told.record.header.label)}]({told.record.header.label}/report.md)"
        ),
    ),
    Column("device", lambda told: told.record.header.machine.device_name, left=True),
    Column("measured", lambda told: told.record.header.created, left=True),
    Column("answer", lambda told: told.page.answer, left=True),
)


def render_index(told: Sequence[Told]) -> str:
    blocks = [
        "# Reports",
        "Written by `make diagnose`, `make optimize` and `make report`; every file here is "
        "derived from the JSON beside it, and `make check` fails if it is not.",
    ]
    for part in PARTS:
        found = [each for each in told if each.part is part]
        if found:
            found.sort(key=lambda each: str(each.record.header.label))
            blocks += [f"## {part.question}", *table(found, _COLUMNS)]
    if not told:
        blocks.append("There is no report yet.")
    return "\n\n".join(blocks) + "\n"
