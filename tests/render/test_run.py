"""Does the report say what the record holds, whatever the record lacks?"""

from __future__ import annotations

import csv
import io
import re
from dataclasses import replace

import pytest

from diagnose.records.header import Gpu, Reading
from diagnose.records.run import RunRecord
from diagnose.render.index import render_index
from diagnose.render.run.export import export
from tests.support.records.experiments import whole_catalogue
from tests.support.records.parts import NO_GPU, gpu, gpu_use, measurement, stage, timing
from tests.support.records.run import (
    loader_stage,
    on_cpu,
    run_record,
    use_gpu,
    with_timing,
)
from tests.support.rendered import rendered, told


def test_a_run_on_a_fake_is_marked_before_anything_else() -> None:
    record = run_record()
    assert "Not a result" not in rendered(record)
    for source in ("stub", "fake device"):
        text = rendered(replace(record, header=replace(record.header, source=source)))
        assert text.split("\n\n")[1].startswith(f"**Not a result: measured on a {source}")
    smoke = rendered(replace(record, header=replace(record.header, effort="smoke")))
    assert "too few steps" in smoke


def test_what_is_unknown_everywhere_is_said_once() -> None:
    text = rendered(on_cpu())
    assert text.split("## What to do")[0].count(NO_GPU) == 1
    assert "power.svg" not in text
    assert "What the GPU did" not in text


def test_a_missing_stage_keeps_its_row() -> None:
    record = run_record()
    text = rendered(replace(record, stages=record.stages[:3], complete=False))
    assert re.search(r"^\| `full_model` \|.*not reached", text, re.MULTILINE)
    empty = rendered(replace(record, stages=(), complete=False))
    assert "No stage was compared" in empty
    assert "The loader was not measured: this stage was not reached" in empty


def test_a_run_in_which_every_stage_failed_is_still_told() -> None:
    record = run_record()
    failed = (stage(each.key, status="failed", reason="out of memory") for each in record.stages)
    text = rendered(replace(record, stages=tuple(failed)))
    assert text.split("\n\n")[1].startswith("**No step could be measured")
    assert "| Training | failed |" in text
    assert "samples/s, GPU power W" in text.split("Unknown in every row: ")[1]


def test_a_noisy_stage_is_marked_where_its_number_stands() -> None:
    wild = replace(timing(0.34), slot_seconds=(1.0, 2.0) * 5)
    noisy = rendered(with_timing(run_record(), "training", wild))
    assert re.search(r"^\| Training \|.*\| noisy, float32", noisy, re.MULTILINE)
    assert re.search(r"^\| loss, backward and optimizer \|.*\| noisy \|$", noisy, re.MULTILINE)
    assert not re.search(r"^\| input pipeline \|.*noisy", noisy, re.MULTILINE)


def test_too_few_samples_are_told_as_such() -> None:
    short = stage("inference", measurement("inference", timing(0.1, slots=3), gpus=()))
    assert re.search(r"(99|100)\.\d+ \(no interval\)", rendered(run_record(short)))
    many = with_timing(run_record(), "training", timing(0.3353, single_steps=700))
    assert re.search(r"^\| `training` \| 700 \| wall( \| 33\d\.\d){3} \|$", rendered(many), re.M)


def test_a_loader_combination_that_was_not_measured_says_so() -> None:
    measured = loader_stage({(0, "mmap"): 30.0, (2, "mmap"): 20.0, (2, "preload"): 10.0})
    text = rendered(run_record(measured))
    assert "| ms/batch | 0 workers | 2 workers |" in text
    assert re.search(r"^\| preload \| –¹ \| (?:9|10)\.\S+ \[.*\] \|$", text, re.MULTILINE)


# What each GPU did ------------------------------------------------------------------------------


def training_row(record: RunRecord) -> list[str]:
    section = rendered(record).split("<summary>What the GPU did")[1].split("</details>")[0]
    row = next(line for line in section.split("\n") if line.startswith("| Training |"))
    return [cell.strip() for cell in row.strip("|").split("|")]


def test_every_gpu_of_the_job_has_its_row() -> None:
    both = measurement("inference", 0.1, gpus=[gpu_use(400), gpu_use(200, gpu=1)])
    text = rendered(run_record(stage("inference", both), gpus=2))
    assert "| Pure inference | 0 | 400 |" in text
    assert "| Pure inference | 1 | 200 |" in text


def test_the_memory_of_each_card_and_the_cores_of_each_stage_have_their_cells() -> None:
    step = measurement("inference", 0.1, gpus=[gpu_use(400)])
    record = run_record(stage("inference", step, cpu_cores=Reading(1.25)), gpus=1)
    text = rendered(record)
    assert re.search(
        r"^\| Pure inference \| 0 \|.*\| 9.00 GB of 2\d.\d GB \(3\d %\) \|", text, re.M
    )
    assert re.search(r"^\| stage \|.*\| CPU cores busy \(of \d+\) \|", text, re.M)
    assert re.search(r"^\| Pure inference \|.*\| 1.2 \|", text, re.M)
    assert "CPU cores busy" not in rendered(run_record(stage("inference", step), gpus=1))


def test_what_could_not_be_read_says_why() -> None:
    lost = Reading(None, "the GPU was lost")
    record = use_gpu(run_record(), "training", idle_watts=lost, celsius_last=lost)
    row = training_row(record)
    assert (row[2], row[3], row[4], row[7]) == ("402", "–¹", "–¹", "–¹")
    assert "- ¹ the GPU was lost" in rendered(record)


@pytest.mark.parametrize(
    ("limits", "cell"),
    [
        ({"sync boost": Reading(0.0)}, "0"),
        ({}, "–¹"),
        ({"sync boost": Reading(None, "unsupported")}, "–¹"),
        ({"sync boost": Reading(0.0), "power brake": Reading(None, "unsupported")}, "0¹"),
        ({"sync boost": Reading(2.0, "from samples")}, "sync boost 2.00¹"),
    ],
)
def test_limits_of_the_clock_are_told_by_reason(limits: dict[str, Reading], cell: str) -> None:
    assert training_row(use_gpu(run_record(), "training", throttle_seconds=limits))[10] == cell


def test_a_doubtful_reading_is_marked_as_such() -> None:
    source = "energy counter (power samples disagree by 9%)"
    record = use_gpu(run_record(), "training", joules_source=source, dropped_samples=3)
    assert training_row(record)[11] == f"{source}, 3 samples of 0 W dropped"
    guessed: Gpu = replace(gpu(), nvml_index=Reading(0.0, "matched by position only"))
    machine = replace(record.header.machine, gpus=(guessed,))
    text = rendered(replace(record, header=replace(record.header, machine=machine)))
    assert re.search(r"^\| nvml index \| 0.", text, re.MULTILINE)
    assert re.search(r"^- . matched by position only$", text, re.MULTILINE)


def test_the_measurements_can_be_taken_into_a_spreadsheet() -> None:
    record = run_record()
    rows = list(csv.DictReader(io.StringIO(export(record))))
    assert len(rows) == sum(len(each.measurements) for each in record.stages)
    training = next(row for row in rows if row["stage"] == "training" and row["role"] == "result")
    assert 0.33 < float(training["seconds_low"]) < float(training["seconds_high"]) < 0.34
    blind = next(csv.DictReader(io.StringIO(export(on_cpu()))))
    assert blind["watts"] == ""
    assert f"watts: {NO_GPU}" in blind["reasons"]
    formula = stage("inference", measurement("=1+1", 0.1))
    assert "'=1+1" in export(run_record(formula))
    assert export(replace(record, stages=())) == "\n"


# Several records --------------------------------------------------------------------------------


def test_a_joint_report_answers_first_and_says_what_is_shared_once() -> None:
    optimized = whole_catalogue()
    optimized = replace(optimized, header=replace(optimized.header, label="rtx-4090"))
    text = rendered(run_record(), optimized)
    answers = re.findall(r"^- (\w.*\?) \*\*", text, re.MULTILINE)
    assert answers[:2] == ["Where does the time go?", "Which line is to blame, and what helps?"]
    assert len(re.findall(r"^# ", text, re.MULTILINE)) == 1


def test_the_index_lists_every_run() -> None:
    other = replace(on_cpu(), header=replace(on_cpu().header, label="another"))
    text = render_index(told(run_record(), other))
    rows = [line for line in text.split("\n") if line.startswith("| [")]
    assert [row.split("]")[0] for row in rows] == ["| [another", "| [rtx-4090"]
    assert "(rtx-4090/report.md)" in text
    assert render_index(told(other, run_record())) == text
    assert "There is no report yet" in render_index([])
