"""Do the stored reports still say what their records hold?"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from diagnose.commands import check as command
from diagnose.measure.machine import describe
from diagnose.records.header import Fact
from diagnose.render import check, store
from tests.support.records.run import on_cpu, run_record, slowed_input
from tests.support.rendered import MOST_OPEN_LINES, count_open_lines

COMMITTED = sorted((Path(__file__).parents[2] / "reports").glob("*/report.md"))


@pytest.mark.parametrize("report", COMMITTED, ids=lambda path: path.parent.name)
def test_a_person_can_read_every_committed_report(report: Path) -> None:
    assert count_open_lines(report.read_text(encoding="utf-8")) <= MOST_OPEN_LINES


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two good reports and their index, drawn once."""
    where = tmp_path_factory.mktemp("written")
    for record in (run_record(), on_cpu()):
        store.save(record, where / record.header.label)
        check.write_report(where / record.header.label)
    check.write_index(where)
    return where


@pytest.fixture
def reports(written: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    shutil.copytree(written, tmp_path / "reports")
    return tmp_path / "reports"


def test_good_reports_pass(reports: Path) -> None:
    assert check.check(reports) == []
    assert sorted(each.name for each in (reports / "xeon").iterdir()) == [
        "loader.svg",
        "report.md",
        "run.csv",
        "run.json",
        "stages.svg",
    ]


def test_a_place_without_reports_is_no_success(tmp_path: Path) -> None:
    (problem,) = check.check(tmp_path / "nowhere")
    assert "nowhere is not a directory" in problem
    (tmp_path / "reports").mkdir()
    assert check.check(tmp_path / "reports") == []


def test_what_is_no_report_is_no_problem(reports: Path) -> None:
    (reports / "empty").mkdir()
    (reports / "begun").mkdir()
    (reports / "begun" / store.LOCK_NAME).touch()
    (reports / "notes.txt").touch()
    (reports / "xeon" / "run.json.corrupt").touch()
    assert check.check(reports) == []


def test_an_index_of_reports_that_are_gone_is_a_problem(reports: Path) -> None:
    for label in ("xeon", "rtx-4090"):
        shutil.rmtree(reports / label)
    index, page_of_claims = check.check(reports)
    assert "README.md differs" in index
    assert "claims/report.md differs" in page_of_claims


def test_a_report_without_its_record_is_one_problem(reports: Path) -> None:
    (reports / "xeon" / "run.json").unlink()
    (problem,) = check.check(reports)
    assert "xeon has no record to prove its loader.svg, report.md, run.csv, stages.svg" in problem


def damage_report(reports: Path) -> None:
    path = reports / "xeon" / "report.md"
    path.write_text(path.read_text().replace("takes 339.", "takes 239.", 1))


def damage_record(reports: Path) -> None:
    path = reports / "xeon" / "run.json"
    path.write_bytes(path.read_bytes()[:-100])


def replace_record(reports: Path) -> None:
    store.save(
        replace(slowed_input(), header=replace(slowed_input().header, label="rtx-4090")),
        reports / "rtx-4090",
    )


def with_header(**changes: Any) -> Callable[[Path], None]:
    def damage(reports: Path) -> None:
        record = run_record()
        changed = replace(record, header=replace(record.header, **changes))
        store.save(changed, reports / "rtx-4090")

    return damage


def edit_figure(reports: Path) -> None:
    path = reports / "xeon" / "stages.svg"
    content = path.read_text()
    shown = re.search(r">(339\.\d) ms<", content)
    assert shown is not None
    path.write_text(content.replace(shown.group(1), "139.9"))


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (damage_report, r"xeon/report\.md differs from its record in line 3"),
        (lambda reports: (reports / "xeon" / "report.md").unlink(), r"report\.md cannot be read"),
        (lambda reports: (reports / "xeon" / "report.md").write_bytes(b"\xff"), "is not text"),
        (lambda reports: (reports / "xeon" / "stages.svg").unlink(), r"stages\.svg cannot be read"),
        (lambda reports: (reports / "xeon" / "power.svg").touch(), r"power\.svg is left over"),
        (lambda reports: (reports / "xeon" / "loader.svg").write_text(""), "another record"),
        (lambda reports: (reports / "xeon" / "run.csv").write_text(""), r"run\.csv differs"),
        (damage_record, r"xeon/run\.json is not valid JSON"),
        (lambda reports: (reports / "xeon" / "run.json").unlink(), "xeon has no record"),
        (replace_record, r"rtx-4090/power\.svg was drawn from another record"),
        (with_header(source="stub"), "rtx-4090 was measured on a stub"),
        (with_header(source="fake device"), "rtx-4090 was measured on a fake device"),
        (with_header(effort="smoke"), "rtx-4090 is a smoke run"),
        (edit_figure, r"stages\.svg was edited after it was drawn"),
        (lambda reports: (reports / "xeon").rename(reports / "other"), "record of the label xeon"),
        (lambda reports: (reports / "README.md").unlink(), r"README\.md cannot be read"),
        (lambda reports: (reports / "README.md").write_text("x"), r"README\.md differs"),
    ],
)
def test_every_kind_of_damage_is_found(
    reports: Path, damage: Callable[[Path], object], complaint: str
) -> None:
    damage(reports)
    problems = check.check(reports)
    assert any(re.search(complaint, problem) for problem in problems), problems


def test_a_figure_that_lost_its_ground_is_removed(reports: Path) -> None:
    without_power = replace(on_cpu(), header=replace(on_cpu().header, label="rtx-4090"))
    store.save(without_power, reports / "rtx-4090")
    check.write_report(reports / "rtx-4090")
    check.write_index(reports)
    assert not (reports / "rtx-4090" / "power.svg").exists()
    assert check.check(reports) == []


def test_code_that_no_commit_holds_is_refused_unless_allowed(tmp_path: Path) -> None:
    record = run_record()
    machine = replace(record.header.machine, git_commit=Fact("0123abc-dirty"))
    dirty = replace(record, header=replace(record.header, machine=machine))
    check.write_report(store.save(dirty, tmp_path / dirty.header.label).parent)
    check.write_index(tmp_path)
    (problem,) = check.check(tmp_path)
    assert "no commit holds (0123abc-dirty): commit and measure again" in problem
    assert check.check(tmp_path, allow_dirty=True) == []


def make_project(folder: Path) -> Path:
    """A repository whose code measures."""
    (folder / "bench").mkdir(parents=True)
    (folder / "bench" / "code.py").write_text("one")
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    for words in (("init", "-q"), ("add", "."), ("commit", "-q", "-m", "one")):
        command = ["git", "-C", str(folder), *who, *words]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
    return folder


def test_code_that_no_history_holds_is_named_and_forbids_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    project, reports = make_project(tmp_path / "project"), tmp_path / "reports"
    known, trees = describe.read_commit(project), describe.read_trees(project)
    gone = Fact("0123456789ab")
    for label, commit, code in (
        ("kept", known, {}),
        ("squashed", gone, trees),
        ("lost", gone, {**trees, "diagnose": "ba9876543210"}),
        ("older", gone, {}),
        ("no-checkout", Fact(None, "the project is not a git checkout"), {}),
    ):
        header = run_record().header
        machine = replace(header.machine, git_commit=commit, code_trees=code)
        record = replace(run_record(), header=replace(header, machine=machine, label=label))
        check.write_report(store.save(record, reports / label).parent)
    check.write_index(reports)
    assert command.find_unknown_code(reports, project) == ["lost", "older"]
    assert command.find_unknown_code(reports, tmp_path) == [], "there is no history to look into"
    shown = (reports / "lost" / "report.md").read_text()
    assert f"| git trees | bench {trees['bench']}, diagnose ba9876543210 |" in shown
    assert "git trees" not in (reports / "older" / "report.md").read_text()
    monkeypatch.setattr(command, "PROJECT", project)
    assert command.run(argparse.Namespace(reports=reports, allow_dirty=False)) == 0
    assert "measured lost, older" in capsys.readouterr().err
