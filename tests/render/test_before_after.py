"""Does the table of all recommended changes say what its records say, whatever was measured?"""

from __future__ import annotations

from dataclasses import replace

import pytest

from diagnose.analyze.optimize.experiment import judge_all
from diagnose.records.experiments import Comparison, OptimizeRecord
from diagnose.render.optimize import experiments
from diagnose.render.optimize.before_after import before_after
from tests.support.records.experiments import compare, ended, optimize_record
from tests.support.records.generation import PASS, bundle, generation_record, plan, tried
from tests.support.records.series import batch, rung, series_record, with_utilization

WAITING = {"before_data_wait_share": 0.4, "after_data_wait_share": 0.1}
NO_NVML = "no NVIDIA GPU"


def text(record: OptimizeRecord) -> str:
    return "\n".join(before_after(record, judge_all(record)))


def cells(record: OptimizeRecord) -> dict[str, list[str]]:
    lines = [line for line in text(record).splitlines() if line.startswith("| ")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    return {row[0]: row[1:] for row in rows}


def factor(record: OptimizeRecord) -> float:
    """Of the speed."""
    return float(cells(record)["samples/s"][2].split()[0])


def whole(key: str, scope: str, **facts: str) -> Comparison:
    """Twice as fast, with a reading of everything that a GPU can be asked."""
    made = compare(key, 2.0, scope=scope, watts=(200.0, 300.0), peaks=(4e9, 3e9))
    return with_utilization(replace(made, facts={**facts, **WAITING}), 0.3, 0.8)


@pytest.mark.parametrize(
    "record",
    [
        optimize_record(whole("all_together", "training step"), gpus=1),
        generation_record(whole("plan_a", PASS, parts="batch_double"), gpus=1),
        series_record(rungs=[whole("no_workers", "training epoch")], gpus=1),
    ],
    ids=["all together", "plan", "ladder"],
)
def test_speed_power_utilization_and_memory_are_there_for_every_job(record: OptimizeRecord) -> None:
    found = cells(record)
    assert factor(record) == pytest.approx(2, rel=0.01)
    assert found["GPU power"][:3] == ["200 W", "300 W", "1.500x"]
    assert found["power ÷ limit"][2] == "1.500x"
    assert found["utilization"][:3] == ["30 %", "80 %", "2.667x"]
    assert found["peak memory"][:3] == ["4.00 GB", "3.00 GB", "0.7500x"]
    assert found["waiting for data"][:3] == ["40 %", "10 %", "0.2500x"]
    assert "Not measured" not in text(record)


def test_what_was_not_measured_is_said_once_and_has_no_row() -> None:
    record = optimize_record(compare("all_together", 2.0))
    assert set(cells(record)) == {"it/s", "samples/s"}
    assert text(record).count(NO_NVML) == 1
    assert "Not measured: GPU power, power ÷ limit, utilization (" in text(record)
    assert "peak memory (the host does not count peaks)" in text(record)


def test_batch_and_epoch_have_their_own_factors() -> None:
    steps = [rung("no_workers", 1.5), rung("batch_256", 2.0)]
    found = cells(series_record(batch(256, 1.4), rungs=steps))
    assert found["s per training epoch"][2] == found["samples/s"][2]
    assert found["ms per batch"][2].startswith("1.00"), "a batch of twice the samples"
    slower = cells(series_record(rungs=[rung("set_to_none", 0.8)]))
    assert slower["samples/s"][2].startswith("0.7995"), "slower is shown as slower"
    assert "ms per batch" not in slower


def test_a_whole_that_was_not_timed_says_why_and_shows_no_number() -> None:
    skipped = ended("all_together_fp16", "skipped", "this processor emulates float16")
    record = optimize_record(compare("all_together", 2.0), skipped)
    assert "SKIPPED: this processor emulates float16." in text(record)
    assert text(optimize_record(compare("apply_prompt", 2.0))) == ""
    assert text(series_record(batch(256, 1.4))) == ""
    epoch = compare("all_together", 1.3, scope="training epoch")
    assert factor(series_record(epoch)) == pytest.approx(1.3, rel=0.01)
    climbed = series_record(epoch, rungs=[rung("no_workers", 1.5)])
    assert factor(climbed) == pytest.approx(1.5, rel=0.01)


def test_a_plan_that_changes_answers_shows_its_time_and_is_not_called_faster() -> None:
    changed = generation_record(plan("b", 2.0, "batch_double", changed=3))
    assert "`OTHER_ANSWERS`: the sides give different answers" in text(changed)
    assert "FASTER" not in text(changed)
    assert factor(changed) == pytest.approx(2, rel=0.01)


def test_the_plan_that_is_recommended_is_the_one_that_is_shown() -> None:
    plans = [
        *bundle(plan("a", 1.2, "batch_double"), tried("batch_double", 1.2)),
        *bundle(plan("c", 1.9, "batch_double"), tried("batch_double", 1.2)),
    ]
    found = cells(generation_record(*plans))
    assert found["samples/s"][2].startswith("1.9")
    assert found["samples/s"][3] == "16x with 8 GPUs"


def test_experiments_show_utilization_and_the_wait_for_data() -> None:
    made = whole("workers_8", "training epoch")
    record = optimize_record(made, gpus=1)
    lines = "\n".join(experiments.before_after(judge_all(record)))
    assert "30 % → 80 %" in lines
    assert "40 % → 10 %" in lines
    without = optimize_record(compare("workers_8", 2.0))
    assert "waiting for data" not in "\n".join(experiments.before_after(judge_all(without)))
