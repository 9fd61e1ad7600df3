"""How does a list of things become a table? Columns say what each row has, and in which unit.

A value that is unknown becomes a footnote with its reason; a column that is unknown in every row
is left out and named below the table instead.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Generic, TypeVar

from diagnose.analyze.units import BYTES, PLAIN, Unit, percent
from diagnose.records.header import Fact, Reading
from diagnose.records.stats import Interval
from diagnose.render.markdown import Footnotes, Markup, clean, prose

Row = TypeVar("Row")


@dataclass(frozen=True)
class Doubt:
    """A value with the reservation that it was read under."""

    text: str
    reason: str


# None is a cell that is empty on purpose; what is unknown is a Reading or Fact with its reason.
Cell = str | int | float | Interval | Reading | Fact | Doubt | None


@dataclass(frozen=True)
class Column(Generic[Row]):
    """One column: its header, what a row has there, and how that is written."""

    header: str
    value: Callable[[Row], Cell]
    unit: Unit = PLAIN
    left: bool = False  # text is read from the left, numbers are compared from the right


def missing(reason: str) -> Fact:
    """A cell that says why there is nothing in it."""
    return Fact(None, reason)


def written(reading: Reading, unit: Unit) -> Cell:
    """A reading in a unit of its own, for columns whose rows are of different kinds."""
    if reading.value is None:
        return reading
    return Doubt(unit.write(reading.value), reading.reason)


def share_of(used: Reading, total: Reading) -> Cell:
    """50.0 GB of 80.0 GB (62 %)."""
    if used.value is None or not total.value:
        return total if used.value is not None else used
    text = f"{BYTES.write(used.value)} of {BYTES.write(total.value)}"
    return Doubt(f"{text} ({percent(used.value / total.value)})", used.reason)


@dataclass(frozen=True)
class Raw:
    """A table before it is written: numbers in their units, reasons left out."""

    header: Sequence[str]
    rows: Sequence[Sequence[str | float | None]]


# While tables are collected: by the Markdown that they become.
collected: ContextVar[dict[str, Raw] | None] = ContextVar("collected", default=None)


def table(rows: Iterable[Row], columns: Sequence[Column[Row]], nothing: str = "") -> list[str]:
    """The blocks of a table with its footnotes; `nothing` is said where there is no row."""
    listed = list(rows)
    if not listed:
        return [nothing] if nothing else []
    cells = [[column.value(row) for row in listed] for column in columns]
    shown = [i for i, column in enumerate(cells) if i == 0 or not all(map(_is_unknown, column))]
    # A column that is empty on purpose in every row says nothing, not even below the table.
    shown = [i for i in shown if i == 0 or any(cell not in (None, "") for cell in cells[i])]
    notes = Footnotes()
    lines = [
        _line([_header(columns[i].header) for i in shown]),
        "|" + "|".join(" :-- " if columns[i].left or i == 0 else " --: " for i in shown) + "|",
    ]
    for number in range(len(listed)):
        lines.append(_line([_write(cells[i][number], columns[i].unit, notes) for i in shown]))
    blocks = ["\n".join(lines)]
    found = collected.get()
    if found is not None:
        found[blocks[0]] = _raw([columns[i] for i in shown], [cells[i] for i in shown])
    if notes.lines():
        blocks.append("\n".join(notes.lines()))
    hidden = [i for i in range(len(columns)) if i not in shown and _is_unknown(cells[i][0])]
    return blocks + _name_hidden({columns[i].header: cells[i] for i in hidden}, notes)


def _raw(columns: Sequence[Column[Row]], cells: Sequence[Sequence[Cell]]) -> Raw:
    """An interval takes three columns, and what is left of a unit stands in the header."""
    header: list[str] = []
    filled: list[list[str | float | None]] = []
    for column, values in zip(columns, cells, strict=True):
        suffix = {"": "", "x": " (ratio)"}.get(column.unit.suffix, f" ({column.unit.suffix})")
        factor = 1.0 if column.unit.prefixed else column.unit.factor
        if any(isinstance(each, Interval) for each in values):
            ends = [_ends(each) for each in values]
            for place, name in enumerate(("", " low", " high")):
                header.append(f"{column.header}{name}{suffix}")
                filled.append([_scaled(each[place], factor) for each in ends])
        else:
            header.append(f"{column.header}{suffix}")
            filled.append([_scaled(_plain(each), factor) for each in values])
    return Raw(header, list(zip(*filled, strict=True)))


def _ends(cell: Cell) -> tuple[str | float | None, ...]:
    if isinstance(cell, Interval):
        return cell.center, cell.low, cell.high
    return _plain(cell), None, None


def _plain(cell: Cell) -> str | float | None:
    if isinstance(cell, (Reading, Fact)):
        return cell.value
    if isinstance(cell, Doubt):
        return cell.text
    assert not isinstance(cell, Interval)
    return cell


def _scaled(value: str | float | None, factor: float) -> str | float | None:
    return value * factor if isinstance(value, float) and factor != 1.0 else value


def pairs(rows: Iterable[tuple[str, Cell]], header: str) -> list[str]:
    """A table of names and values."""
    columns: tuple[Column[tuple[str, Cell]], ...] = (
        Column(header, lambda row: row[0]),
        Column("", lambda row: row[1], left=True),
    )
    return table(rows, columns)


def code(text: str) -> Markup:
    """Source text as it stands, in backticks that it cannot close."""
    text = clean(text).replace("|", "\\|")
    longest = max(map(len, re.findall("`+", text)), default=0)
    ticks, space = "`" * (longest + 1), " " if longest else ""
    return Markup(f"{ticks}{space}{text}{space}{ticks}") if text else Markup("")


def _is_unknown(cell: Cell) -> bool:
    return isinstance(cell, (Reading, Fact)) and cell.value is None


def _name_hidden(hidden: Mapping[str, Sequence[Cell]], notes: Footnotes) -> list[str]:
    """Which columns are unknown in every row, grouped by the reason."""
    by_reason: dict[str, list[str]] = {}
    for header, column in hidden.items():
        reasons = dict.fromkeys(each.reason for each in column if isinstance(each, (Reading, Fact)))
        # A row that has nothing at all already says why.
        new = [each for each in reasons if not notes.has(each)] or list(reasons)
        by_reason.setdefault("; ".join(new), []).append(header)
    texts = [f"{', '.join(names)} ({reason})" for reason, names in by_reason.items()]
    return [f"Unknown in every row: {prose('; '.join(texts))}."] if texts else []


def _write(cell: Cell, unit: Unit, notes: Footnotes) -> str:
    if cell is None:
        return ""
    if isinstance(cell, Markup):
        return cell
    if isinstance(cell, (Reading, Fact)) and cell.value is None:
        return notes.missing(cell.reason)
    if isinstance(cell, Reading):
        assert cell.value is not None
        return notes.doubt(unit.write(cell.value), cell.reason)
    if isinstance(cell, Doubt):
        return notes.doubt(cell.text, cell.reason)
    if isinstance(cell, Fact):
        return prose(str(cell.value))
    if isinstance(cell, (int, float, Interval)):
        return prose(unit.write(cell))
    return prose(cell)


def _header(text: str) -> str:
    return text if isinstance(text, Markup) else prose(text)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(text or " " for text in cells) + " |"
