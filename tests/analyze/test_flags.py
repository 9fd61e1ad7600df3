"""Is everything that casts doubt on the numbers flagged, and nothing else?"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from diagnose.analyze.run.rules import judge
from diagnose.records.header import Machine, Reading
from diagnose.records.run import RunRecord, StageResult
from tests.support.records.parts import gpu, machine, stage, timing
from tests.support.records.run import ceilings_stage, pair, run_record, use_gpu, with_timing
from tests.support.verdicts import found, kinds, tell


def on(where: Machine) -> RunRecord:
    record = run_record()
    return replace(record, header=replace(record.header, machine=where))


def with_gpu(**changes: Any) -> RunRecord:
    return on(replace(run_record().header.machine, gpus=(replace(gpu(), **changes),)))


def test_a_healthy_run_raises_no_flag() -> None:
    assert kinds(run_record(), "flag") <= {"outliers"}


@pytest.mark.parametrize(("seconds", "severity"), [(0.01, "warning"), (5.0, "critical")])
def test_heat_is_flagged(seconds: float, severity: str) -> None:
    limits = {
        "software thermal slowdown": Reading(seconds),
        "software power cap": Reading(9.0),
        "hardware thermal slowdown": Reading(None, "not supported"),
    }
    finding = found(use_gpu(run_record(), "training", throttle_seconds=limits), "throttled")
    assert finding.severity == severity
    assert "software thermal slowdown" in finding.evidence
    assert "cap" not in finding.evidence


@pytest.mark.parametrize(("lowest", "severity"), [(2.3e9, "warning"), (1.5e9, "critical")])
def test_a_falling_clock_is_flagged(lowest: float, severity: str) -> None:
    record = use_gpu(run_record(), "training", sm_hertz_lowest=Reading(lowest))
    assert found(record, "throttled").severity == severity


@pytest.mark.parametrize(
    ("record", "kind", "evidence"),
    [
        (on(machine(cpu_busy=0.2)), "shared", "20 % of the processors"),
        (on(replace(machine(), gpus=(gpu(used_before=1e9),))), "shared", "1.00 GB"),
        (with_gpu(utilization_before=Reading(0.5)), "shared", "50 % utilized"),
        (
            with_gpu(pcie_generation_max=Reading(5.0)),
            "pcie_link",
            "GPU 0: at best gen 4 x16 under load, where gen 5 x16",
        ),
        (with_gpu(pcie_width_max=Reading(32.0)), "pcie_link", "where gen 4 x32"),
        (with_gpu(nvml_index=Reading(0.0, "guessed")), "gpu_identity", "GPU 0: guessed"),
        (
            use_gpu(run_record(), "training", joules_source="energy counter (samples disagree)"),
            "gpu_energy",
            "training: GPU 0, energy counter (samples disagree)",
        ),
        (
            use_gpu(run_record(), "training", dropped_samples=3),
            "gpu_energy",
            "training: GPU 0, 3 samples of 0 W",
        ),
        (
            with_timing(run_record(), "training", timing(0.33, unmet="interval is 3 % wide")),
            "imprecise",
            "training: interval is 3 % wide",
        ),
        (
            with_timing(run_record(), "training", timing(0.33, not_steady="mean still falls")),
            "not_steady",
            "training: mean still falls",
        ),
    ],
)
def test_each_sign_raises_its_flag(record: RunRecord, kind: str, evidence: str) -> None:
    finding = found(record, kind)
    assert (finding.verdict, finding.severity) == ("flag", "warning")
    assert evidence in finding.evidence
    assert finding.advice


@pytest.mark.parametrize(
    "record",
    [
        # An idle link drops to a lower generation; the other stages saw it at full speed.
        use_gpu(run_record(), "inference", pcie_generation=Reading(1.0)),
        with_gpu(pcie_generation_max=Reading(None, "virtual machine")),
        with_gpu(nvml_index=Reading(None, "no NVML")),
    ],
)
def test_what_rests_or_is_unknown_raises_none(record: RunRecord) -> None:
    assert kinds(record, "flag") <= {"outliers"}


def noisy_slots(*slots: float) -> RunRecord:
    starts = tuple(map(float, range(len(slots))))
    clock = replace(timing(0.1), slot_seconds=slots, slot_starts=starts)
    return with_timing(run_record(), "inference", clock)


@pytest.mark.parametrize(
    ("slots", "severity", "evidence"),
    [
        ((1.0, 1.15, 0.9, 1.1, 1.0, 1.15, 0.9, 1.1, 0.9, 1.15), "warning", "inference: IQR is"),
        ((1.0, 2.0) * 5, "critical", "IQR is"),
        ((5e-4,) * 10, "warning", "only 500 µs"),
        (((1.0,) * 19 + (1.9,)), "warning", "more than half the mean"),
    ],
)
def test_noise_is_flagged_by_its_size(
    slots: tuple[float, ...], severity: str, evidence: str
) -> None:
    finding = found(noisy_slots(*slots), "noisy")
    assert finding.severity == severity
    assert evidence in finding.evidence


def test_outliers_are_counted_and_a_slow_start_is_named() -> None:
    finding = found(noisy_slots(9.0, 1.0, 1.01, 1.02, 1.03, 1.0, 1.01, 1.02, 1.03, 1.0), "outliers")
    assert finding.severity == "warning"
    assert "inference: the first slot is slow" in finding.evidence


def test_many_places_are_counted_and_not_listed() -> None:
    record = run_record()
    for each in record.stages:
        if each.measurements:
            record = with_timing(record, each.key, timing(0.3, not_steady="falls"))
    assert found(record, "not_steady").evidence.endswith(" more")


def test_a_step_above_its_ceiling_discredits_the_ceiling() -> None:
    record = run_record(ceilings_stage(full=10e12))
    assert "full_model: 250 %" in found(record, "ceiling_exceeded").evidence
    # Nothing may be concluded from it, least of all that the arithmetic is fine.
    assert found(record, "low_compute").verdict == "cannot tell"
    assert "attains" not in tell(record)


@pytest.mark.parametrize(
    ("status", "severity"),
    [("failed", "critical"), ("hung", "critical"), ("invalid", "critical"), ("skipped", "info")],
)
def test_a_stage_that_did_not_end_well_is_told(status: str, severity: str) -> None:
    record = run_record(stage("full_model", status=status, reason="out of memory at batch 128"))
    finding = found(record, f"stage_{status}")
    assert (finding.severity, finding.evidence) == (severity, "out of memory at batch 128")
    assert "around_backbone" not in {each.kind for each in judge(record)}
    assert tell(record).startswith("A training step of bert (seed, batch 128")
    assert ("Not measured: full_model" in tell(record)) == (status != "skipped")


def test_numbers_of_an_invalid_stage_are_not_used() -> None:
    bad: StageResult = replace(
        pair("real_data", 0.9, 0.3353, 398), status="invalid", reason="the loss is not finite"
    )
    record = run_record(bad, without=["full_model"])
    assert "input_bound" not in {each.kind for each in judge(record)}
    assert "on a synthetic batch" in tell(record)


def test_an_unfinished_run_says_so() -> None:
    record = run_record()
    partial = replace(record, stages=record.stages[:3], complete=False)
    missing = found(partial, "unfinished").evidence
    assert missing == "not reached: precision, loader, real_data, full_model"
    assert tell(partial).endswith("The run was not finished.")
