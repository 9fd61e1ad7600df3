"""Is every report what its record renders to? Writing and checking are the same rendering."""

from __future__ import annotations

import contextlib
from pathlib import Path

from diagnose.model import OptimizeRecord, RunRecord
from diagnose.tell import derive, optimize_files, seal, store
from diagnose.tell.index import render_index
from diagnose.tell.optimize_report import render_optimize
from diagnose.tell.render import render

REPORT_NAME = "report.md"
INDEX_NAME = "README.md"
_FIGURE_NAMES = ("stages.svg", "loader.svg", "power.svg")


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
    records, optimized = [], []
    for path in store.find_records(reports_dir):
        with contextlib.suppress(store.StoreError):
            records.append(store.load(path))
    for path in store.find_records(reports_dir, store.OPTIMIZE_NAME):
        with contextlib.suppress(store.StoreError):
            optimized.append(store.load_optimize(path))
    path = reports_dir / INDEX_NAME
    store.write_atomically(path, render_index(records, optimized).encode())
    return path


def check(reports_dir: Path) -> list[str]:
    """One sentence per problem; an empty list means that every report can be believed."""
    if not reports_dir.is_dir():
        return [f"{reports_dir} is no directory: name the one that holds the reports"]
    problems: list[str] = []
    records: list[RunRecord] = []
    optimized: list[OptimizeRecord] = []
    unread = False
    for directory in sorted(each for each in reports_dir.glob("*") if each.is_dir()):
        try:
            optimized += _load_optimize(directory)
        except store.StoreError as error:
            problems.append(str(error))
            unread = True
        if not (directory / store.RECORD_NAME).is_file():
            told = [name for name in (REPORT_NAME, *_FIGURE_NAMES) if (directory / name).exists()]
            # A run that ended before its first stage leaves a lock: only a report needs a record.
            if told:
                problems.append(
                    f"{directory} has no {store.RECORD_NAME} to prove its {', '.join(told)}: "
                    "remove it or measure again"
                )
                unread = True
            continue
        try:
            record = store.load(directory / store.RECORD_NAME)
        except store.StoreError as error:
            problems.append(str(error))
            unread = True
            continue
        records.append(record)
        problems += _check_report(directory, record)
    index = reports_dir / INDEX_NAME
    # An index of fewer records than there are would only repeat the problem above.
    for each in optimized:
        problems += _check_optimize(reports_dir / each.label, each)
    if not unread and (records or optimized or index.exists()):
        problems += _compare(index, render_index(records, optimized))
    return problems


def _load_optimize(directory: Path) -> list[OptimizeRecord]:
    path = directory / store.OPTIMIZE_NAME
    return [store.load_optimize(path)] if path.is_file() else []


def _check_optimize(directory: Path, record: OptimizeRecord) -> list[str]:
    problems = _check_origin(directory, record)
    problems += _compare(directory / optimize_files.REPORT_NAME, render_optimize(record))
    fault = optimize_files.figure_fault(directory, record)
    return [*problems, fault] if fault else problems


def _check_origin(directory: Path, record: RunRecord | OptimizeRecord) -> list[str]:
    """Only real measurements under their own name may be kept."""
    problems = []
    if record.source != "hardware":
        problems.append(
            f"{directory} was measured on a {record.source}: it is no result and must not be kept"
        )
    if record.effort == "smoke":
        problems.append(
            f"{directory} is a smoke run: its numbers mean nothing and must not be kept"
        )
    if record.label != directory.name:
        problems.append(f"{directory} holds the record of the label {record.label}")
    return problems


def _check_report(directory: Path, record: RunRecord) -> list[str]:
    problems = _check_origin(directory, record)
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
        fault = seal.find_fault(path.read_bytes(), fingerprint)
    except OSError as error:
        return [f"{path} cannot be read ({error.strerror}): run `make report`"]
    return [f"{path} {fault}: run `make report`"] if fault else []


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
