"""How much must change to add something? One new file per room, and one line elsewhere.

One of each kind is added to a copy of the project, as docs/layout.md says, and then used.
"""

from __future__ import annotations

import difflib
import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from diagnose.records.codec import dumps
from tests.support.additions import ADDITIONS, Addition
from tests.support.records.script import record
from tests.test_layers import find_forbidden_imports, find_import_cycles

pytestmark = pytest.mark.child

ROOT = Path(__file__).parents[1]
TIMEOUT_SECONDS = 120
LABEL = "added"


@dataclass(frozen=True)
class Copy:
    """The project with all additions, and what each of them has changed."""

    root: Path
    new_files: Mapping[str, list[str]]
    changed_lines: Mapping[str, list[str]]

    @property
    def reports(self) -> Path:
        return self.root / "reports"

    def diagnose(self, *words: object) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "diagnose", *map(str, words)],
            cwd=self.root,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    root = tmp_path_factory.mktemp("project")
    for room in ("diagnose", "bench"):
        # With what is compiled already: its times stay valid in a copy.
        shutil.copytree(ROOT / room, root / room, ignore=shutil.ignore_patterns("planted"))
    new_files, changed_lines = {}, {}
    for kind, addition in ADDITIONS.items():
        before = read_all(root)
        add(addition, root)
        after = read_all(root)
        new_files[kind] = sorted(after.keys() - before.keys())
        changed_lines[kind] = [
            line for file in before for line in compare(before[file], after[file])
        ]
    return Copy(root, new_files, changed_lines)


@pytest.fixture(scope="module")
def measured(copy: Copy) -> Copy:
    words = ("--workload", "linear", "--stages", "double_batch", "--smoke", "--label", LABEL)
    copy.diagnose("run", *words)
    return copy


def read_all(root: Path) -> dict[str, str]:
    return {path.relative_to(root).as_posix(): path.read_text() for path in root.rglob("*.py")}


def add(addition: Addition, root: Path) -> None:
    for file, source in addition.files.items():
        (root / file).write_text(source)
    path, opening = root / addition.table[0], addition.table[1]
    lines = path.read_text().splitlines()
    first = lines.index(opening)
    closing = next(at for at in range(first, len(lines)) if lines[at] in (")", "]", "}"))
    lines.insert(closing, addition.line)
    path.write_text("\n".join(lines) + "\n")


def compare(before: str, after: str) -> list[str]:
    """Every line that was added or removed."""
    if before == after:
        return []
    lines = difflib.ndiff(before.splitlines(), after.splitlines())
    return [line for line in lines if line.startswith(("+ ", "- "))]


@pytest.mark.parametrize("kind", ADDITIONS)
def test_it_takes_one_file_per_room_and_one_line(copy: Copy, kind: str) -> None:
    addition = ADDITIONS[kind]
    assert copy.new_files[kind] == sorted(addition.files)
    rooms = [file.split("/")[:2] for file in addition.files]
    assert all(rooms.count(room) == 1 for room in rooms)
    assert copy.changed_lines[kind] == [f"+ {addition.line}"]


def test_what_is_added_keeps_to_the_import_table(copy: Copy) -> None:
    assert find_forbidden_imports(copy.root) == []
    assert find_import_cycles(copy.root) == []


def test_a_new_stage_of_a_new_workload_is_measured_and_reported(measured: Copy) -> None:
    report = (measured.reports / LABEL / "report.md").read_text()
    made = json.loads((measured.reports / LABEL / "run.json").read_text())
    assert made["workload"]["name"] == "linear"
    assert [(each["key"], each["status"]) for each in made["stages"]] == [("double_batch", "done")]
    # Its row among the stages, what it costs over its reference, its bar, its slowest steps.
    assert report.count("\n| Twice the batch |") == 2
    assert "![" in report
    assert "\n| `double_batch` |" in report


def test_a_new_optimization_is_tried(copy: Copy) -> None:
    words = ("--workload", "dgca", "--size", "tiny", "--only", "one_sum", "--smoke")
    copy.diagnose("optimize", *words, "--label", "optimization")
    report = (copy.reports / "optimization" / "report.md").read_text()
    assert "\n| `one_sum` | row by row → at once |" in report


def test_a_new_verb_is_listed_explained_and_reported(measured: Copy) -> None:
    assert "Name the stage that took longest." in measured.diagnose("--help")
    assert "diagnose slowest-stage LABEL" in measured.diagnose("slowest-stage", "--help")
    assert measured.diagnose("slowest-stage", LABEL) == "Twice the batch\n"
    # Beside the answer of the run, under the same label.
    report = (measured.reports / LABEL / "report.md").read_text()
    assert "- Which stage took longest? **It was Twice the batch.**" in report


def test_a_new_cause_is_found_and_reported(copy: Copy) -> None:
    directory = copy.reports / "cause"
    directory.mkdir(parents=True)
    paused = record(step_seconds=(0.1,) * 19 + (2.1,))
    (directory / "script.json").write_bytes(dumps(paused))
    copy.diagnose("report", "--reports", copy.reports)
    report = (directory / "report.md").read_text()
    assert "is pause at whole step (estimated)" in report
    assert "steps that paused: 1" in report
    assert "gc.freeze()" in report
