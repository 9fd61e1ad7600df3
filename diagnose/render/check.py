"""Is every report what its records render to? Writing and checking are the same rendering."""

from __future__ import annotations

import contextlib
import csv
import io
import re
from collections.abc import Iterator
from pathlib import Path

from diagnose.analyze import derive
from diagnose.render import claims, seal, store
from diagnose.render.index import render_index
from diagnose.render.parts import PARTS, Told, load_parts, render_parts
from diagnose.render.table import Raw, collected

REPORT_NAME = "report.md"
INDEX_NAME = "README.md"
_DERIVED = (".md", ".svg", ".csv")


def write_report(directory: Path) -> Path:
    """report.md, figures and CSV, rendered completely before the first file is touched."""
    told = load_parts(directory)
    if not told:
        raise store.StoreError(f"{directory} holds no record; measure first")
    text = render_parts(told).encode()
    drawn = {name: svg for each in told for name, svg in each.draw_all().items()}
    exported = {name: text.encode() for each in told for name, text in each.exports().items()}
    for name, content in {**drawn, **exported}.items():
        store.write_atomically(directory / name, content)
    for path in directory.glob("*.svg"):
        if path.name not in drawn and seal.is_sealed(path.read_bytes()):
            path.unlink()
    store.write_atomically(directory / REPORT_NAME, text)
    return directory / REPORT_NAME


def write_tables(directory: Path, folder: Path) -> list[Path]:
    """Every table of one report as CSV with units in its headers, in a folder of its label."""
    written = []
    for name, raw in _find_tables(directory):
        path = folder / directory.name / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            store.write_atomically(path, _format(raw).encode())
        except OSError as error:
            raise store.StoreError(
                f"{path} cannot be written ({error.strerror}); name another folder by --csv"
            ) from error
        written.append(path)
    return written


def _find_tables(directory: Path) -> Iterator[tuple[str, Raw]]:
    """By the record and the title of the section that a table stands in."""
    seen: dict[str, int] = {}
    for told in load_parts(directory):
        tables: dict[str, Raw] = {}
        token = collected.set(tables)
        try:
            sections = told.part.page(told.record).sections
        finally:
            collected.reset(token)
        for section in sections:
            for block in section.blocks:
                if block not in tables:
                    continue
                title = re.sub(r"[^a-z0-9]+", "-", section.title.lower()).strip("-")
                name = f"{Path(told.part.record_name).stem}-{title}"
                seen[name] = seen.get(name, 0) + 1
                suffix = f"-{seen[name]}" if seen[name] > 1 else ""
                yield f"{name}{suffix}.csv", tables[block]


def _format(raw: Raw) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(raw.header)
    writer.writerows(raw.rows)
    return text.getvalue()


def find_reports(reports_dir: Path) -> list[Path]:
    """The directories that hold a record."""
    paths = (path for part in PARTS for path in store.find_records(reports_dir, part.record_name))
    return sorted({path.parent for path in paths})


def write_index(reports_dir: Path) -> Path:
    """The overview of every report that can be read."""
    told: list[Told] = []
    for directory in find_reports(reports_dir):
        with contextlib.suppress(store.StoreError):
            told += load_parts(directory)
    path = reports_dir / INDEX_NAME
    store.write_atomically(path, render_index(told).encode())
    page = reports_dir / claims.DIRECTORY / REPORT_NAME
    if text := claims.render_claims([each.record for each in told]):
        store.write_atomically(page, text.encode())
    else:
        page.unlink(missing_ok=True)
    return path


def check(reports_dir: Path, *, allow_dirty: bool = False) -> list[str]:
    """One sentence per problem; an empty list means that every report can be believed."""
    if not reports_dir.is_dir():
        return [f"{reports_dir} is not a directory; name the one that holds the reports"]
    problems: list[str] = []
    all_told: list[Told] = []
    unread = False
    for directory in sorted(each for each in reports_dir.glob("*") if each.is_dir()):
        if directory.name == claims.DIRECTORY:
            continue
        try:
            told = load_parts(directory)
        except store.StoreError as error:
            problems.append(str(error))
            unread = True
            continue
        all_told += told
        if told:
            problems += _check_report(directory, told, allow_dirty)
            continue
        kept = sorted(each.name for each in directory.iterdir() if each.suffix in _DERIVED)
        # A run that ended before its first stage leaves a lock: only a report needs a record.
        if kept:
            problems.append(
                f"{directory} has no record to prove its {', '.join(kept)}: "
                "remove it or measure again"
            )
            unread = True
    index = reports_dir / INDEX_NAME
    # An index of fewer records than there are would only repeat the problem above.
    if not unread and (all_told or index.exists()):
        problems += _compare(index, render_index(all_told))
        text = claims.render_claims([each.record for each in all_told])
        page = reports_dir / claims.DIRECTORY / REPORT_NAME
        if text or page.exists():
            problems += _compare(page, text)
    return problems


def _check_report(directory: Path, told: list[Told], allow_dirty: bool) -> list[str]:
    problems = [problem for each in told for problem in _check_origin(directory, each.record)]
    commits = {each.record.header.machine.git_commit.value or "" for each in told}
    dirty = sorted(each for each in commits if each.endswith("-dirty"))
    if dirty and not allow_dirty:
        problems.append(
            f"{directory} was measured from code that no commit holds ({', '.join(dirty)}): commit "
            "and measure again, or accept it by --allow-dirty"
        )
    problems += _compare(directory / REPORT_NAME, render_parts(told))
    for each in told:
        for name, text in each.exports().items():
            problems += _compare(directory / name, text)
    sealed = {name: each.record for each in told for name in each.figure_names()}
    for name, record in sealed.items():
        problems += _check_figure(directory / name, derive.fingerprint(record))
    left_over = [path for path in sorted(directory.glob("*.svg")) if path.name not in sealed]
    return problems + [f"{path} is left over: no record here has this figure" for path in left_over]


def _check_origin(directory: Path, record: store.Record) -> list[str]:
    """Only real measurements under their own name may be kept."""
    problems = []
    if record.header.source != "hardware":
        problems.append(
            f"{directory} was measured on a {record.header.source}: not a result, must not be kept"
        )
    if record.header.effort == "smoke":
        problems.append(
            f"{directory} is a smoke run: its numbers mean nothing and must not be kept"
        )
    if record.header.label != directory.name:
        problems.append(f"{directory} holds the record of the label {record.header.label}")
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
