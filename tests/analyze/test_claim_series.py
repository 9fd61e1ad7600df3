"""What becomes of the guide's claims under evidence for and against them?"""

from __future__ import annotations

from dataclasses import replace

import pytest

from diagnose.analyze.claims.ledger import judge_claims, ledger
from diagnose.analyze.claims.series import SERIES_CLAIMS
from diagnose.records.experiments import Comparison
from tests.support.claim_results import result, results
from tests.support.records.experiments import compare, ended, optimize_record, wrong
from tests.support.records.series import (
    COMPILED,
    batch,
    epoch,
    other_model,
    rung,
    series_record,
    whole_series,
    with_utilization,
)


def verdict(start: str, *comparisons: Comparison, gpus: int = 1) -> str:
    return result(series_record(*comparisons, gpus=gpus), start).verdict


def test_every_workload_is_held_against_its_own_report() -> None:
    assert {claim.id[:3] for claim, _ in judge_claims(whole_series(), ())} == {"001"}
    assert {claim.id[:3] for claim, _ in judge_claims(optimize_record(), ())} == {"003"}
    record = optimize_record()
    own = replace(record, workload=replace(record.workload, name="mine"))
    assert judge_claims(own, ()) == []
    assert ledger([]) == ["Nothing was published about this workload."]


def test_claims_stand_in_the_order_of_the_guide_and_once() -> None:
    names = [(claim.id, claim.says) for claim in SERIES_CLAIMS]
    assert len(set(names)) == len(names)
    numbers = [int(claim.id.removeprefix("001-")) for claim in SERIES_CLAIMS]
    assert numbers == sorted(numbers)


def test_without_evidence_only_arithmetic_is_decided() -> None:
    for name, each in results(series_record()).items():
        decided = "(arithmetic)" in name
        assert (each.verdict != "NOT TESTABLE HERE") is decided, name
        assert each.measured if decided else each.condition, name


@pytest.mark.parametrize(
    ("start", "expected", "words"),
    [
        ("001-25 50-100 ms", "REFUTED", "128 samples in 50 to 100 ms are 1280 to 2560 samples/s"),
        ("001-25 15-30 ms", "REFUTED", "256 samples in 15 to 30 ms are 8533 to 17067 samples/s"),
        ("001-23 utilisation 20", "CONDITIONAL", "1.75x to 4.50x, printed 2x to 3x"),
        ("001-24 500", "CONDITIONAL", "2.00x to 8.00x, printed 2x to 4x"),
        ("001-25 50-100 →", "CONDITIONAL", "1.67x to 6.67x, printed 3x to 5x"),
    ],
)
def test_the_two_tables_contradict_each_other(start: str, expected: str, words: str) -> None:
    found = result(series_record(), start)
    assert found.verdict == expected
    assert words in found.measured


@pytest.mark.parametrize(
    ("ratio", "gpus", "expected"),
    [
        (1.3, 1, "CONFIRMED"),
        (1.05, 1, "REFUTED"),
        (2.0, 1, "REFUTED"),
        (2.0, 0, "CONDITIONAL"),
        (0.9, 1, "REFUTED"),
        (0.9, 0, "CONDITIONAL"),
    ],
)
def test_compile_gains_what_was_promised(ratio: float, gpus: int, expected: str) -> None:
    found = epoch("compile_default", ratio, facts=COMPILED)
    assert verdict("001-16", found, gpus=gpus) == expected


def test_the_better_mode_of_compile_decides() -> None:
    slow, fast = (
        epoch(key, ratio, facts=COMPILED)
        for key, ratio in (("compile_default", 0.9), ("compile_max_autotune", 1.3))
    )
    found = result(series_record(slow, fast, gpus=1), "001-16")
    assert found.verdict == "CONFIRMED"
    assert "compile_default" in found.measured
    assert "earned back after" in found.measured


def test_a_line_in_the_log_proves_nothing() -> None:
    off = epoch("compile_default", 1.0, facts={**COMPILED, "took_effect": False})
    found = result(series_record(off), "001-30")
    assert found.verdict == "CONDITIONAL"
    assert "nothing was compiled" in found.measured


def test_set_to_none_names_todays_default() -> None:
    found = result(series_record(epoch("set_to_none", 1.0), gpus=1), "001-19")
    assert found.verdict == "REFUTED"
    assert "default since PyTorch 2.0" in found.condition
    assert verdict("001-19", epoch("set_to_none", 1.07)) == "CONFIRMED"


@pytest.mark.parametrize("ratio", [1.04, 1.06])
def test_so_little_more_work_that_the_intervals_allow_both_is_undecided(ratio: float) -> None:
    found = result(series_record(other_model("hidden_128", ratio, (1000, 1000)), gpus=1), "001-14")
    assert found.verdict == "NOT TESTABLE HERE"
    assert found.condition == "undecided: the intervals overlap"


@pytest.mark.parametrize(("ratio", "expected"), [(0.5, "CONFIRMED"), (0.25, "REFUTED")])
def test_density_is_told_in_work_not_in_speed(ratio: float, expected: str) -> None:
    found = result(series_record(other_model("hidden_128", ratio, (1000, 4000)), gpus=1), "001-14")
    assert found.verdict == expected
    assert "FLOP/s" in found.measured
    assert "samples/s" in found.measured
    assert "FASTER" not in found.measured


@pytest.mark.parametrize(
    ("together", "expected"), [(2.5, "CONFIRMED"), (1.5, "CONDITIONAL"), (0.9, "REFUTED")]
)
def test_rate_and_batch_time_come_from_one_timer(together: float, expected: str) -> None:
    record = series_record(
        batch(256, 1.2),
        epoch("no_workers", 1.6),
        rungs=(rung("no_workers", together),),
        gpus=1,
    )
    found = result(record, "001-24 all")
    assert found.verdict == expected
    # 64 samples per second are 2 s for 128 of them, from the same slots.
    assert "ms per batch of 128" in found.measured
    rate = float(found.measured.split("before: ")[1].split(" samples/s")[0])
    milliseconds = float(found.measured.split("samples/s, ")[1].split(" ms")[0])
    assert rate * milliseconds == pytest.approx(128e3, rel=0.01)


@pytest.mark.parametrize(
    ("after", "expected"), [(0.8, "CONFIRMED"), (0.5, "CONDITIONAL"), (0.2, "REFUTED")]
)
def test_utilisation_has_to_pass_seventy_percent(after: float, expected: str) -> None:
    made = with_utilization(rung("no_workers", 1.6, watts=(200.0, 300.0)), 0.3, after)
    record = series_record(epoch("no_workers", 1.6), rungs=(made,), gpus=1)
    assert result(record, "001-23 utilisation rises").verdict == expected


def test_accumulation_needs_equal_gradients_and_less_memory() -> None:
    assert verdict("001-34", epoch("accumulate_4", 0.9, peaks=(2e9, 1e9))) == "CONFIRMED"
    assert verdict("001-34", epoch("accumulate_4", 0.9, peaks=(2e9, 2e9))) == "REFUTED"
    assert verdict("001-34", epoch("accumulate_4", 0.9, peaks=(2e9, 2e9)), gpus=0) == "CONDITIONAL"
    assert verdict("001-34", wrong("accumulate_4", "after", "training epoch")) == "REFUTED"


def test_what_does_not_apply_is_not_testable() -> None:
    skipped = replace(ended("tf32", "skipped", "capability 7.5"), scope="training epoch")
    assert "capability 7.5" in result(series_record(skipped), "001-06").condition


def test_evaluation_is_judged_in_its_own_scope() -> None:
    found = compare("evaluate_on_device", 1.2, scope="evaluation")
    assert verdict("001-22 predictions", found) == "CONFIRMED"
