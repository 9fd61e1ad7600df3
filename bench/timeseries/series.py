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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from bench.timeseries.dates import find_days, name_rows
from diagnose.workload import WorkloadError

PACKAGE = "vega_datasets"
_WEATHER = "_data/seattle-weather.csv"
DEFAULT_TARGET = "temp_max"
_DELIMITERS = ",;\t"


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
