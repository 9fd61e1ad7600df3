"""Is every report what its record renders to? Writing and checking are the same rendering."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

from diagnose.model import RunRecord
from diagnose.tell import derive, store
from diagnose.tell.index import render_index
from diagnose.tell.render import render

REPORT_NAME = "report.md"
INDEX_NAME = "README.md"
_FIGURE_NAMES = ("stages.svg", "loader.svg", "power.svg")
_FINGERPRINT = re.compile(rb"record sha256 ([0-9a-f]{64})")


def write_report(directory: Path, record: RunRecord) -> Path:
    """report.md and the figures, rendered completely before the first file is touched."""
    # Only writing draws: checking runs without the plotting library.
    from diagnose.tell.plots import figures

    drawn = figures(record)
    text = render(record).encode()
    for name, content in drawn.items():
        store.write_atomically(directory / name, content)
    for name in _FIGURE_NAMES:
        if name not in drawn:
            with contextlib.suppress(FileNotFoundError):
                (directory / name).unlink()
    store.write_atomically(directory / REPORT_NAME, text)
    return directory / REPORT_NAME


def write_index(reports_dir: Path) -> Path:
    """The overview of every record that can be read."""
    records = []
    for path in store.find_records(reports_dir):
        with contextlib.suppress(store.StoreError):
            records.append(store.load(path))
    path = reports_dir / INDEX_NAME
    store.write_atomically(path, render_index(records).encode())
    return path


def check(reports_dir: Path) -> list[str]:
    """One sentence per problem; an empty list means that every report can be believed."""
    problems: list[str] = []
    records: list[RunRecord] = []
    directories = sorted(each for each in reports_dir.glob("*") if each.is_dir())
    for directory in directories:
        if not (directory / store.RECORD_NAME).is_file():
            problems.append(f"{directory} has no {store.RECORD_NAME}: remove it or measure again")
            continue
        try:
            record = store.load(directory / store.RECORD_NAME)
        except store.StoreError as error:
            problems.append(str(error))
            continue
        records.append(record)
        problems += _check_report(directory, record)
    # An index of fewer records than there are would only repeat the problem above.
    if directories and len(records) == len(directories):
        problems += _compare(reports_dir / INDEX_NAME, render_index(records))
    return problems


def _check_report(directory: Path, record: RunRecord) -> list[str]:
    problems = []
    if record.source != "hardware":
        problems.append(
            f"{directory} was measured on a {record.source}: it is no result and must not be kept"
        )
    if record.label != directory.name:
        problems.append(f"{directory} holds the record of the label {record.label}")
    problems += _compare(directory / REPORT_NAME, render(record))
    expected = derive.figure_names(record)
    for name in _FIGURE_NAMES:
        path = directory / name
        if name in expected:
            problems += _check_figure(path, derive.fingerprint(record))
        elif path.exists():
            problems.append(f"{path} is left over: this record has no such figure")
    return problems


def _check_figure(path: Path, fingerprint: str) -> list[str]:
    try:
        found = _FINGERPRINT.search(path.read_bytes())
    except OSError as error:
        return [f"{path} cannot be read ({error.strerror}): run `make report`"]
    if found is None or found.group(1).decode() != fingerprint:
        return [f"{path} was drawn from another record: run `make report`"]
    return []


def _compare(path: Path, expected: str) -> list[str]:
    try:
        found = path.read_bytes().decode()
    except OSError as error:
        return [f"{path} cannot be read ({error.strerror}): run `make report`"]
    except UnicodeDecodeError:
        return [f"{path} is not text: run `make report`"]
    if found == expected:
        return []
    old, new = found.split("\n"), expected.split("\n")
    same = 0
    while same < min(len(old), len(new)) and old[same] == new[same]:
        same += 1
    shown = [lines[same][:100] if same < len(lines) else "(end)" for lines in (old, new)]
    return [
        f"{path} differs from its record in line {same + 1}: it says {shown[0]!r}, "
        f"the record says {shown[1]!r}: run `make report`"
    ]
