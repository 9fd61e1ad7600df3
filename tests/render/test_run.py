"""Does the report say what the record holds, and do the stored reports still say it?"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from diagnose.render import check, store
from diagnose.render.index import render_index
from diagnose.render.optimize.report import render_optimize
from diagnose.render.parts import render_parts
from diagnose.render.run import frames
from tests.support.records.experiments import whole_catalogue
from tests.support.records.parts import NO_GPU, measurement, stage, timing
from tests.support.records.run import golden_record, on_cpu, run_record, slowed_input, with_timing
from tests.support.rendered import rendered as render
from tests.support.rendered import told

GOLDEN = Path(__file__).parent / "golden" / "report.md"


def test_the_golden_report() -> None:
    text = render(golden_record())
    if os.environ.get("UPDATE_GOLDEN") == "1":
        GOLDEN.write_text(text, encoding="utf-8")
    assert text == GOLDEN.read_text(encoding="utf-8")


def test_the_answer_comes_first_and_the_sections_in_order() -> None:
    text = render(run_record())
    assert text.split("\n\n")[1].startswith("**A training step of the full bert")
    headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert headings == [
        "Stages",
        "What each part costs",
        "Causes",
        "Excluded",
        "Flags",
        "What the GPU did",
        "What this device attains",
        "DataLoader",
        "Slow steps",
        "Figures",
        "Data",
        "Machine",
        "How to read this report",
        "How it was measured",
    ]


def test_a_run_on_a_fake_is_marked_before_anything_else() -> None:
    assert "no result" not in render(run_record())
    for source in ("stub", "fake device"):
        text = render(replace(run_record(), header=replace(run_record().header, source=source)))
        assert text.split("\n\n")[1].startswith(
            f"**This is no result: it was measured on a {source}"
        )
    assert "too few steps" in render(
        replace(run_record(), header=replace(run_record().header, effort="smoke"))
    )


def test_an_empty_cell_says_why() -> None:
    text = render(on_cpu())
    assert f"¹ {NO_GPU}" in text
    assert f"There is no power figure: {NO_GPU}." in text
    assert "power.svg" not in text
    assert "copy: not applicable on the CPU" in text


def test_a_missing_stage_keeps_its_row() -> None:
    record = run_record()
    text = render(replace(record, stages=record.stages[:3], complete=False))
    row = next(line for line in text.split("\n") if line.startswith("| full\\_model"))
    assert "not reached" in row
    assert "the run ended before this stage" in text
    empty = render(replace(record, stages=(), complete=False))
    assert "No stage was compared" in empty
    assert "The loader was not measured: this stage was not reached" in empty


def test_a_run_in_which_every_stage_failed_is_still_told() -> None:
    record = run_record()
    failed = (
        stage(each.key, status="failed", reason="out of memory at batch 128")
        for each in record.stages
    )
    text = render(replace(record, stages=tuple(failed)))
    assert text.split("\n\n")[1].startswith("**No step could be measured")
    assert "| Training | –¹ | –¹ | –¹ | failed |" in text
    assert "- ¹ out of memory at batch 128" in text


def test_a_noisy_stage_is_marked_where_its_number_stands() -> None:
    wild = replace(timing(0.34), slot_seconds=(1.0, 2.0) * 5)
    noisy = render(with_timing(run_record(), "training", wild))
    assert re.search(r"^\| Training \|.*\| noisy, float32", noisy, re.MULTILINE)
    assert re.search(r"^\| loss, backward and optimiser \|.*\| noisy \|$", noisy, re.MULTILINE)
    assert not re.search(r"^\| input pipeline \|.*noisy", noisy, re.MULTILINE)
    assert "noisy" not in render(run_record())


def test_percentiles_say_how_many_steps_they_need() -> None:
    text = render(run_record())
    assert "p99 needs 662 steps" in text
    assert re.search(
        r"^\| training \| 70 \| wall \| 33\d\.\d \| 33\d\.\d \| –² \|$", text, re.MULTILINE
    )
    many = with_timing(run_record(), "training", timing(0.3353, single_steps=700))
    assert re.search(
        r"^\| training \| 700 \| wall \| 33\d\.\d \| 33\d\.\d \| 33\d\.\d \|$",
        render(many),
        re.MULTILINE,
    )


def test_a_frame_keeps_the_reason_of_every_missing_number() -> None:
    frame = frames.stage_frame(on_cpu())
    assert set(frame["watts"]) == {None}
    assert set(frame["watts_reason"]) == {NO_GPU}
    assert frames.ledger_frame(run_record())["stage"].tolist() == [
        "training",
        "precision",
        "real_data",
        "full_model",
    ]
    assert len(frames.loader_frame(run_record())) == 8
    assert frames.loader_frame(run_record(without=["loader"])).empty


def test_no_interval_is_told_as_such() -> None:
    short = stage("inference", measurement("inference", timing(0.1, slots=3), gpus=()))
    assert "100.0 (no interval)" in re.sub(r"(99|100)\.\d+", "100.0", render(run_record(short)))


def test_a_joint_report_answers_first_and_then_tells_every_part() -> None:
    run, optimized = (
        run_record(),
        replace(whole_catalogue(), header=replace(whole_catalogue().header, label="rtx-4090")),
    )
    text = render_parts(told(run, optimized))
    lines = text.split("\n")
    assert lines[0] == "# rtx-4090"
    assert [line.split("**")[0] for line in lines[2:4]] == [
        "- Where does the time go? ",
        "- Which line is to blame, and what helps? ",
    ]
    assert [line for line in lines if line.startswith("# ")] == ["# rtx-4090"]
    assert [line for line in lines if line.startswith("## ")] == [
        line.replace("# ", "## ", 1)
        for part in (render(run), render_optimize(optimized))
        for line in part.split("\n")[:1]
    ]
    assert render_parts(told(run)) == render(run)


def test_the_index_lists_every_run() -> None:
    other = replace(on_cpu(), header=replace(on_cpu().header, label="another"))
    text = render_index(told(run_record(), other))
    rows = [line for line in text.split("\n") if line.startswith("| [")]
    assert [row.split("]")[0] for row in rows] == ["| [another", "| [rtx-4090"]
    assert "(rtx-4090/report.md)" in text
    assert render_index(told(other, run_record())) == text
    assert "There is no report yet" in render_index([])
    untrained = render_index(told(run_record(without=["training"])))
    assert "the training stage was not reached" in untrained


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
        "run.json",
        "stages.svg",
    ]


def test_a_place_without_reports_is_no_success(tmp_path: Path) -> None:
    (problem,) = check.check(tmp_path / "nowhere")
    assert "nowhere is no directory" in problem
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
    (problem,) = check.check(reports)
    assert "README.md differs" in problem


def test_a_report_without_its_record_is_one_problem(reports: Path) -> None:
    (reports / "xeon" / "run.json").unlink()
    (problem,) = check.check(reports)
    assert "xeon has no record to prove its report.md, stages.svg, loader.svg" in problem


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


def stub_record(reports: Path) -> None:
    store.save(
        replace(run_record(), header=replace(run_record().header, source="stub")),
        reports / "rtx-4090",
    )


def fake_record(reports: Path) -> None:
    store.save(
        replace(run_record(), header=replace(run_record().header, source="fake device")),
        reports / "rtx-4090",
    )


def smoke_record(reports: Path) -> None:
    store.save(
        replace(run_record(), header=replace(run_record().header, effort="smoke")),
        reports / "rtx-4090",
    )


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
        (damage_record, r"xeon/run\.json is not valid JSON"),
        (lambda reports: (reports / "xeon" / "run.json").unlink(), "xeon has no record"),
        (replace_record, r"rtx-4090/power\.svg was drawn from another record"),
        (stub_record, "rtx-4090 was measured on a stub"),
        (fake_record, "rtx-4090 was measured on a fake device"),
        (smoke_record, "rtx-4090 is a smoke run"),
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
