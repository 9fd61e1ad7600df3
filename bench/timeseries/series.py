"""Where does the daily series come from? Four years of real weather, or the user's CSV file.

A file that cannot be used is refused with the rows that are to blame: a gap that is filled in
silently would be learnt as weather.
"""

from __future__ import annotations

import csv
import hashlib
import importlib.util
import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from itertools import pairwise
from pathlib import Path

from diagnose.workload import WorkloadError

PACKAGE = "vega_datasets"
_WEATHER = "_data/seattle-weather.csv"
DEFAULT_TARGET = "temp_max"
_DELIMITERS = ",;\t"
_DAY = timedelta(days=1)
_NAMED_ROWS = 5  # more row numbers than this nobody reads in one sentence
# A day in its own part of the cell, whatever separates year, month and day; a time may follow.
_CELL = re.compile(
    r"(\d{8}|\d+([-/.])\d+\2\d+)(?:[T ]\d{1,2}:\d{2}[\d:.]*(?:Z|[+-]\d{2}:?\d{2})?)?"
)
# Unambiguous ways to write a day first; of 01/02/2024 the one that gives consecutive days wins.
_FORMS = ("%Y-%m-%d", "%Y%m%d", "%d-%m-%Y", "%m-%d-%Y")


@dataclass(frozen=True)
class Series:
    """One value per day and column; no day is missing."""

    description: str  # names a package or a file, never a directory of the user
    sha256: str
    days: tuple[date, ...]
    numbers: Mapping[str, tuple[float, ...]]
    categories: Mapping[str, tuple[str, ...]]

    def __len__(self) -> int:
        return len(self.days)


def read(path: Path | None) -> Series:
    """The user's file if one is given, else the weather of the installed package."""
    return read_package() if path is None else read_file(path)


def read_package(module: str = PACKAGE) -> Series:
    """NOAA's daily weather of Seattle, 2012 to 2015: public domain, in a package of MIT licence."""
    # The package is found but not imported: that would load pandas for one small file.
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise WorkloadError(
            f"the default series is missing; run `pip install {PACKAGE}` or give your own CSV file"
        )
    file = Path(spec.submodule_search_locations[0]) / _WEATHER
    return parse(file.read_bytes(), f"{PACKAGE} {file.name}, daily NOAA weather")


def read_file(path: Path) -> Series:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise WorkloadError(f"{path.name} cannot be read: {error.strerror}") from error
    return parse(content, path.name)


def parse(content: bytes, file: str) -> Series:
    columns, rows = _read_columns(content, file)
    date_name, days = find_days(columns, rows, file)
    numbers: dict[str, tuple[float, ...]] = {}
    categories: dict[str, tuple[str, ...]] = {}
    faults: list[tuple[int, str, str]] = []
    for name, cells in columns.items():
        if name == date_name:
            continue
        values = [_read_number(cell) for cell in cells]
        # A column of words is a category; one with some words among its numbers is damaged.
        if 2 * values.count(None) > len(values) and any(cells):
            categories[name] = tuple(cells)
            continue
        numbers[name] = tuple(value for value in values if value is not None)
        trials = zip(rows, cells, values, strict=True)
        faults += [(row, name, cell) for row, cell, value in trials if value is None]
    if faults:
        row, name, cell = min(faults)
        faulty_rows = sorted({row for row, _, _ in faults})
        raise WorkloadError(
            f"{file} has cells that are no numbers in {name_rows(faulty_rows)}: "
            f"row {row} has '{cell}' in column {name}; correct them or remove the column"
        )
    if not numbers:
        raise WorkloadError(f"{file} has no column of numbers that could be predicted")
    return Series(file, hashlib.sha256(content).hexdigest(), days, numbers, categories)


def find_target(series: Series, name: str | None = None) -> str:
    """The column asked for; else temp_max where there is one; else the first one of numbers."""
    if name is None:
        return DEFAULT_TARGET if DEFAULT_TARGET in series.numbers else next(iter(series.numbers))
    if name not in series.numbers:
        raise WorkloadError(
            f"{series.description} has no column of numbers '{name}'; "
            f"choose one of {', '.join(series.numbers)}"
        )
    return name


def _read_columns(content: bytes, file: str) -> tuple[dict[str, list[str]], list[int]]:
    """The cells by column, and the row of the file that each came from (the header is row 1)."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise WorkloadError(f"{file} is not UTF-8 text; save it as CSV in UTF-8") from error
    header_line = text.partition("\n")[0]
    delimiter = max(_DELIMITERS, key=header_line.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    try:
        lines = [(reader.line_num, [cell.strip() for cell in line]) for line in reader if line]
    except csv.Error as error:
        raise WorkloadError(f"{file} is not a CSV file: {error}") from error
    if len(lines) < 2:
        raise WorkloadError(f"{file} has no rows; give a header line and one row for each day")
    _, names = lines[0]
    _require_distinct(names, file)
    for row, cells in lines[1:]:
        if len(cells) != len(names):
            raise WorkloadError(
                f"row {row} of {file} has {len(cells)} cells, the header has {len(names)}; "
                "correct the row or quote cells that contain the delimiter"
            )
    columns = {name: [cells[i] for _, cells in lines[1:]] for i, name in enumerate(names)}
    return columns, [row for row, _ in lines[1:]]


def _require_distinct(names: Sequence[str], file: str) -> None:
    for name in names:
        if names.count(name) > 1:
            raise WorkloadError(f"the header of {file} has '{name}' twice; rename one of them")


def _read_number(cell: str) -> float | None:
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def find_days(
    columns: Mapping[str, Sequence[str]], rows: Sequence[int], file: str
) -> tuple[str, tuple[date, ...]]:
    """The name of the date column and its days: one for each row, ascending, none missing."""
    best: tuple[int, int] = (0, 0)
    found: tuple[str, list[date | None]] = ("", [])
    for name, cells in columns.items():
        for form in _FORMS:
            days = [_read_day(cell, form) for cell in cells]
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


def _read_day(cell: str, form: str) -> date | None:
    match = _CELL.fullmatch(cell)
    if match is None:
        return None
    try:
        return datetime.strptime(re.sub("[/.]", "-", match[1]), form).date()
    except ValueError:
        return None  # another form, or the 31st of February


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
