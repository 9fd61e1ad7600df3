"""What does a record render to, as `diagnose report` would write it?"""

from __future__ import annotations

from diagnose.render.parts import PARTS, Told, render_parts
from diagnose.render.store import Record


def told(*records: Record) -> list[Told]:
    parts = {part.kind: part for part in PARTS}
    return [Told(parts[type(record)], record) for record in records]


def rendered(*records: Record) -> str:
    return render_parts(told(*records))


# A person reads no more than this; whatever is longer belongs into folded details.
MOST_OPEN_LINES = 150


def count_open_lines(text: str) -> int:
    """Lines that a reader sees without opening anything: empty ones too, and what a fold says."""
    count, depth = 0, 0
    for line in text.splitlines():
        closes = line.startswith("</details")
        count += depth == 0
        depth += line.startswith("<details") - closes
    return count
