"""Is everything that casts doubt on the numbers flagged, and nothing else?"""

from __future__ import annotations

from dataclasses import replace

import pytest

from diagnose.analyze.run.rules import judge
from diagnose.records.header import Reading
from diagnose.records.run import RunRecord, StageResult
from tests.support.records.parts import gpu, machine, stage, timing
from tests.support.records.run import ceilings_stage, pair, run_record, use_gpu, with_timing
from tests.support.verdicts import found, kinds, tell


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


def test_a_shared_machine_is_flagged_by_each_sign() -> None:
    record = run_record()
    assert "shared" not in kinds(record, "flag")
    busy = replace(record, header=replace(record.header, machine=machine(cpu_busy=0.2)))
    assert "20 % of the processors" in found(busy, "shared").evidence
    used = replace(machine(), gpus=(gpu(used_before=1e9),))
    assert (
        "1.00 GB"
        in found(replace(record, header=replace(record.header, machine=used)), "shared").evidence
    )
    active = replace(machine(), gpus=(replace(gpu(), utilization_before=Reading(0.5)),))
    assert (
        "50 % utilized"
        in found(replace(record, header=replace(record.header, machine=active)), "shared").evidence
    )


def noisy_slots(*slots: float) -> RunRecord:
    clock = replace(
        timing(0.1), slot_seconds=slots, slot_starts=tuple(map(float, range(len(slots))))
    )
    return with_timing(run_record(), "inference", clock)


def test_noise_is_flagged_by_its_size() -> None:
    assert "noisy" not in kinds(run_record(), "flag")
    wide = found(noisy_slots(1.0, 1.15, 0.9, 1.1, 1.0, 1.15, 0.9, 1.1, 0.9, 1.15), "noisy")
    assert wide.severity == "warning"
    assert "inference: IQR is" in wide.evidence
    wild = found(noisy_slots(1.0, 2.0, 1.0, 2.0, 1.0, 2.0, 1.0, 2.0, 1.0, 2.0), "noisy")
    assert wild.severity == "critical"
    short = found(noisy_slots(*[5e-4] * 10), "noisy")
    assert "only 500 µs" in short.evidence
    spike = found(noisy_slots(*[1.0] * 19, 1.9), "noisy")
    assert "more than half the mean" in spike.evidence


def test_outliers_are_counted_and_a_slow_start_is_named() -> None:
    finding = found(noisy_slots(9.0, 1.0, 1.01, 1.02, 1.03, 1.0, 1.01, 1.02, 1.03, 1.0), "outliers")
    assert finding.severity == "warning"
    assert "inference: the first slot is slow" in finding.evidence


def test_what_the_clock_could_not_reach_is_told() -> None:
    clock = timing(
        0.33, unmet="interval is 3 % wide, 1 % was wanted", not_steady="mean still falls"
    )
    record = with_timing(run_record(), "training", clock)
    assert found(record, "imprecise").evidence == "training: interval is 3 % wide, 1 % was wanted"
    assert found(record, "not_steady").evidence == "training: mean still falls"
    # A longer time limit ends nothing later: the clock stops at the effort's own precision.
    assert found(record, "imprecise").advice == "Run with --full."


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
    assert found(partial, "unfinished").evidence == (
        "not reached: precision, loader, real_data, full_model"
    )
    assert tell(partial).endswith("The run was not finished.")
    assert "224 ms of it is loss, backward and optimizer" in tell(partial)
