"""Is everything told that was sampled of a GPU, and is a doubtful reading marked as such?"""

from __future__ import annotations

from dataclasses import replace

import pytest

from diagnose.records.header import Gpu, Reading
from diagnose.records.run import RunRecord
from tests.support.records.parts import gpu, gpu_use, measurement, stage
from tests.support.records.run import on_cpu, run_record, use_gpu
from tests.support.rendered import rendered as render
from tests.support.verdicts import found, kinds


def with_gpu(record: RunRecord, **changes: Reading) -> RunRecord:
    described: Gpu = replace(gpu(), **changes)  # type: ignore[arg-type]
    return replace(
        record,
        header=replace(record.header, machine=replace(record.header.machine, gpus=(described,))),
    )


def training_row(record: RunRecord) -> list[str]:
    section = render(record).split("## What the GPU did")[1].split("\n## ")[0]
    row = next(line for line in section.split("\n") if line.startswith("| Training |"))
    return [cell.strip() for cell in row.strip("|").split("|")]


def test_a_row_tells_what_was_sampled() -> None:
    assert training_row(run_record()) == [
        "Training",
        "0",
        "402",
        "22",
        "380",
        "2520",
        "10500",
        "51 → 63",
        "gen 4 x16 (gen 4 x16)",
        "software power cap 3.20",
        "energy counter",
    ]


def test_without_a_gpu_there_is_no_such_table() -> None:
    assert "What the GPU did" not in render(on_cpu())


def test_every_gpu_of_the_job_has_its_row() -> None:
    both = measurement("inference", 0.1, gpus=[gpu_use(400), gpu_use(200, gpu=1)])
    text = render(run_record(stage("inference", both), gpus=2))
    assert "| Pure inference | 0 | 400 |" in text
    assert "| Pure inference | 1 | 200 |" in text


def test_what_could_not_be_read_says_why() -> None:
    lost = Reading(None, "the GPU was lost")
    record = use_gpu(run_record(), "training", idle_watts=lost, celsius_last=lost)
    row = training_row(record)
    assert (row[2], row[3], row[4], row[7]) == ("402", "–¹", "–¹", "–¹")
    assert "- ¹ the GPU was lost" in render(record)


@pytest.mark.parametrize(
    ("limits", "cell"),
    [
        ({"sync boost": Reading(0.0)}, "0"),
        ({}, "–¹"),
        ({"sync boost": Reading(None, "unsupported")}, "–¹"),
        ({"sync boost": Reading(0.0), "power brake": Reading(None, "unsupported")}, "0, –¹"),
        ({"sync boost": Reading(2.0, "from samples")}, "sync boost 2.00¹"),
    ],
)
def test_limits_of_the_clock_are_told_by_reason(limits: dict[str, Reading], cell: str) -> None:
    assert training_row(use_gpu(run_record(), "training", throttle_seconds=limits))[9] == cell


def test_energy_names_its_source_and_its_doubts() -> None:
    source = "energy counter (power samples disagree by 9%)"
    record = use_gpu(run_record(), "training", joules_source=source, dropped_samples=3)
    assert training_row(record)[10] == f"{source}, 3 samples of 0 W dropped"
    finding = found(record, "gpu_energy")
    assert finding.severity == "warning"
    assert f"training: GPU 0, {source}" in finding.evidence
    assert "training: GPU 0, 3 samples of 0 W" in finding.evidence
    assert "gpu_energy" not in kinds(run_record(), "flag")


@pytest.mark.parametrize(
    ("highest", "seen"),
    [
        ({"pcie_generation_max": Reading(5.0)}, "gen 4 x16 under load, where gen 5 x16"),
        ({"pcie_width_max": Reading(32.0)}, "gen 4 x16 under load, where gen 4 x32"),
    ],
)
def test_a_link_below_its_maximum_is_flagged(highest: dict[str, Reading], seen: str) -> None:
    finding = found(with_gpu(run_record(), **highest), "pcie_link")
    assert finding.severity == "warning"
    assert finding.evidence.startswith(f"GPU 0: at best {seen}")
    assert "slot" in finding.advice


def test_a_link_that_rests_or_is_unknown_is_not_flagged() -> None:
    # An idle link drops to a lower generation; the other stages saw it at full speed.
    idle = use_gpu(run_record(), "inference", pcie_generation=Reading(1.0))
    assert "pcie_link" not in kinds(idle, "flag")
    unknown = with_gpu(run_record(), pcie_generation_max=Reading(None, "virtual machine"))
    assert "pcie_link" not in kinds(unknown, "flag")


def test_a_gpu_that_was_guessed_is_flagged_and_footnoted() -> None:
    guessed = with_gpu(run_record(), nvml_index=Reading(0.0, "matched by position only"))
    finding = found(guessed, "gpu_identity")
    assert finding.sentence == "Power and clocks may belong to another GPU."
    assert finding.evidence == "GPU 0: matched by position only"
    assert "| NVML index | 0⁴ |" in render(guessed)
    unknown = with_gpu(run_record(), nvml_index=Reading(None, "no NVML"))
    assert "gpu_identity" not in kinds(unknown, "flag")
