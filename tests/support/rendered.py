"""What does a record render to, as `diagnose report` would write it?"""

from __future__ import annotations

from diagnose.render.parts import PARTS, Told, render_parts
from diagnose.render.store import Record


def told(*records: Record) -> list[Told]:
    parts = {part.kind: part for part in PARTS}
    return [Told(parts[type(record)], record) for record in records]


def rendered(*records: Record) -> str:
    return render_parts(told(*records))
