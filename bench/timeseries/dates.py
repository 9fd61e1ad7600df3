"""Which column of a table holds its days, and is there exactly one row for each day?"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import date, timedelta
from itertools import pairwise

from diagnose.workload import WorkloadError

_DAY = timedelta(days=1)
_NAMED_ROWS = 5  # more row numbers than this nobody reads in one sentence
_TIME_OF_DAY = r"(?:[T ]\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?(?:Z|[+-]\d{2}:?\d{2})?)?"

# Unambiguous ways to write a day first; of 01/02/2024 the one that gives consecutive days wins.
_FORMS: tuple[tuple[re.Pattern[str], Callable[[int, int, int], date]], ...] = (
    (re.compile(rf"(\d{{4}})[-/.](\d{{1,2}})[-/.](\d{{1,2}}){_TIME_OF_DAY}"), date),
    (re.compile(r"(\d{4})(\d{2})(\d{2})"), date),
    (
        re.compile(rf"(\d{{1,2}})[./-](\d{{1,2}})[./-](\d{{4}}){_TIME_OF_DAY}"),
        lambda d, m, y: date(y, m, d),
    ),
    (
        re.compile(rf"(\d{{1,2}})[./-](\d{{1,2}})[./-](\d{{4}}){_TIME_OF_DAY}"),
        lambda m, d, y: date(y, m, d),
    ),
)


def find_days(
    columns: Mapping[str, Sequence[str]], rows: Sequence[int], file: str
) -> tuple[str, tuple[date, ...]]:
    """The name of the date column and its days: one for each row, ascending, none missing."""
    best: tuple[int, int] = (0, 0)
    found: tuple[str, list[date | None]] = ("", [])
    for name, cells in columns.items():
        for pattern, make in _FORMS:
            days = [_read_day(cell, pattern, make) for cell in cells]
            score = (sum(day is not None for day in days), _count_consecutive(days))
            if score > best:
                best, found = score, (name, days)
    name, days = found
    if 2 * best[0] <= len(rows):
        raise WorkloadError(
            f"no column of {file} holds dates such as 2024-01-31; give a CSV file with a header "
            "line, a date column and one row for each day"
        )
    for row, cell, day in zip(rows, columns[name], days, strict=True):
        if day is None:
            raise WorkloadError(
                f"row {row} of {file}: '{cell}' in column {name} is not a date like the others; "
                "correct it or remove the row"
            )
    known = [day for day in days if day is not None]
    _require_every_day_once(known, rows, file)
    return name, tuple(known)


def name_rows(rows: Sequence[int]) -> str:
    """row 7; or rows 7, 9, 12 and 4 more."""
    shown = ", ".join(map(str, rows[:_NAMED_ROWS]))
    rest = len(rows) - _NAMED_ROWS
    return f"row{'s' if len(rows) > 1 else ''} {shown}" + (f" and {rest} more" if rest > 0 else "")


def _read_day(
    cell: str, pattern: re.Pattern[str], make: Callable[[int, int, int], date]
) -> date | None:
    match = pattern.fullmatch(cell)
    if match is None:
        return None
    try:
        return make(*map(int, match.groups()))
    except ValueError:
        return None  # the 31st of February


def _count_consecutive(days: Sequence[date | None]) -> int:
    return sum(
        before is not None and day is not None and day - before == _DAY
        for before, day in pairwise(days)
    )


def _require_every_day_once(days: Sequence[date], rows: Sequence[int], file: str) -> None:
    steps = [
        (row, before, day) for row, (before, day) in zip(rows[1:], pairwise(days), strict=True)
    ]
    for row, before, day in steps:
        if day == before:
            raise WorkloadError(
                f"row {row} of {file} repeats the day {day}; keep one row for each day"
            )
        if day < before:
            raise WorkloadError(
                f"row {row} of {file}: {day} comes after {before}; sort the file by date"
            )
    gaps = [each for each in steps if each[2] - each[1] > _DAY]
    if gaps:
        first_row, before, day = gaps[0]
        missing = sum((later - earlier).days - 1 for _, earlier, later in gaps)
        raise WorkloadError(
            f"{file} lacks {missing} day{'s' if missing > 1 else ''} before "
            f"{name_rows([row for row, _, _ in gaps])}: row {first_row} is {day}, the row above it "
            f"{before}; fill the gaps or cut the file there"
        )
