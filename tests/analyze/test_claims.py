"""Does every claim of the first report get the verdict that the evidence gives?"""

from __future__ import annotations

from dataclasses import replace

import pytest

from diagnose.analyze.claims.ledger import CLAIMS, judge_claims, ledger
from diagnose.analyze.optimize.experiment import judge_all
from diagnose.records.experiments import Comparison, LaunchMap, OptimizeRecord
from diagnose.records.header import Reading
from tests.support.claim_results import result, results
from tests.support.records.experiments import (
    BATCH,
    compare,
    ended,
    launch_line,
    launch_map,
    not_claimed,
    optimize_record,
    whole_catalogue,
    wrong,
)


def verdict(start: str, *comparisons: Comparison, gpus: int = 1) -> str:
    return result(optimize_record(*comparisons, gpus=gpus), start).verdict


def test_every_claim_is_told_once_and_in_order() -> None:
    names = [(claim.id, claim.says) for claim in CLAIMS]
    assert len(set(names)) == len(names)
    numbers = [int(claim.id.removeprefix("003-")) for claim in CLAIMS]
    assert numbers == sorted(numbers)


def test_without_any_evidence_only_arithmetic_is_decided() -> None:
    for name, each in results(optimize_record()).items():
        if "(arithmetic)" in name:
            assert each.verdict != "NOT TESTABLE HERE", name
            assert each.measured, name
        else:
            assert each.verdict == "NOT TESTABLE HERE", name
            assert each.condition, name


@pytest.mark.parametrize(
    ("start", "expected", "words"),
    [
        ("003-05", "CONDITIONAL", "printed 1.07"),
        ("003-14", "CONFIRMED", "= 1147.0, printed 1147"),
        ("003-15", "CONFIRMED", "= 381.7"),
        ("003-16 FP16", "CONFIRMED", "128 / 0.1629 s = 785.8, printed 785.5"),
        ("003-18", "CONFIRMED", "= 686.7"),
        ("003-19", "CONFIRMED", "= 220.9"),
        ("003-24 data loading is excluded, 12.4", "CONDITIONAL", "23.5 ms, 13 % of that step"),
        ("003-29 128", "CONFIRMED", "768"),
        ("003-36 it saves about", "CONFIRMED", "1.29 GiB"),
        ("003-44 2.2 it/s before", "REFUTED", "= 455 ms, but test 6 took 579.4 ms"),
        ("003-44 2.2 →", "CONFIRMED", "2.23"),
        ("003-46 200", "CONFIRMED", "+60 %"),
        ("003-47 utilisation 44", "CONDITIONAL", "27 points, or +60 %"),
        ("003-49", "CONFIRMED", "0.57x of one card, an efficiency of 29 %"),
        ("003-51", "CONDITIONAL", "take 0.96 s, the step on two cards 0.71 s"),
    ],
)
def test_the_printed_figures_are_recomputed(start: str, expected: str, words: str) -> None:
    found = result(optimize_record(), start)
    assert found.verdict == expected
    assert words in found.measured


@pytest.mark.parametrize(
    ("ratio", "gpus", "expected"),
    [
        (1.9, 1, "CONFIRMED"),
        (1.0, 1, "REFUTED"),
        (0.8, 1, "REFUTED"),
        (0.8, 0, "CONDITIONAL"),  # a CPU does not refute what was said of a GPU
    ],
)
def test_a_claimed_gain(ratio: float, gpus: int, expected: str) -> None:
    found = compare("mixed_precision", ratio, equality=not_claimed())
    assert verdict("003-16 low", found, gpus=gpus) == expected


@pytest.mark.parametrize("gpus", [0, 1])
def test_what_the_host_does_is_refuted_on_any_device(gpus: int) -> None:
    slower = compare("loader_prefetch", 0.8, 0.3, "batch")
    assert verdict("003-41", slower, gpus=gpus) == "REFUTED"


def test_an_undecided_or_broken_experiment_decides_no_claim() -> None:
    few = compare("dynamic_mask", 2.0, scope="mask", blocks=4)
    failed = ended("dynamic_mask", "failed", "it raised KeyError")
    undecided = result(optimize_record(few), "003-34 dynamic")
    assert undecided.verdict == "NOT TESTABLE HERE"
    assert "undecided: 4 blocks" in undecided.condition
    assert "KeyError" in result(optimize_record(failed), "003-34 dynamic").condition
    assert verdict("003-34 dynamic", wrong("dynamic_mask", "after")) == "REFUTED"


@pytest.mark.parametrize(
    ("key", "start"),
    [
        ("apply_prompt", "003-33"),
        ("dynamic_mask", "003-34 the published"),
        ("gated_fusion", "003-35 scatter_add_ replaces"),
    ],
)
def test_a_published_form_with_other_results_is_refuted(key: str, start: str) -> None:
    bad = wrong(key)
    good = compare(key, 1.5, form="as published", after_text="on easy data")
    refuted = result(optimize_record(bad), start)
    assert refuted.verdict == "REFUTED"
    assert "15 of 16 samples differ" in refuted.measured
    assert refuted.condition.startswith("it would need")
    partly = result(optimize_record(bad, good), start)
    assert partly.verdict == "CONDITIONAL"
    assert partly.condition.startswith("on ")
    assert "equal results: on easy data" in partly.measured
    assert verdict(start, good) == "CONFIRMED"
    broken = replace(bad, status="failed", reason="it raised", equality=None)
    assert verdict(start, broken) == "NOT TESTABLE HERE"
    # The correct form alone says nothing about the published one.
    assert verdict(start, compare(key, 1.5)) == "NOT TESTABLE HERE"


@pytest.mark.parametrize(
    ("key", "start"), [("dataset_preload", "003-25"), ("loader_workers", "003-26")]
)
def test_an_excluded_factor(key: str, start: str) -> None:
    step = compare("all_together", 2.0, 0.5)  # 250 ms after
    assert verdict(start, compare(key, 1.0, 0.012, "batch")) == "CONFIRMED"
    assert verdict(start, compare(key, 2.0, 0.012, "batch")) == "REFUTED"
    hidden = result(optimize_record(compare(key, 2.0, 0.012, "batch"), step), start)
    assert hidden.verdict == "CONDITIONAL"
    assert "of a training step that is 2.4" in hidden.measured
    assert verdict(start, compare(key, 2.0, 0.12, "batch"), step) == "REFUTED"


@pytest.mark.parametrize(
    ("batch_seconds", "expected"), [(0.01, "CONFIRMED"), (0.1, "CONDITIONAL"), (0.4, "REFUTED")]
)
def test_loading_against_the_step(batch_seconds: float, expected: str) -> None:
    step = compare("all_together", 2.0, 0.5)
    batch = compare("dataset_clone", 1.1, batch_seconds, "batch")
    found = [
        each
        for name, each in results(optimize_record(step, batch, gpus=1)).items()
        if name == "003-24 data loading is excluded"
    ]
    assert found[0].verdict == expected


def test_the_core_bottleneck_is_the_largest_gain() -> None:
    loop, smaller = compare("apply_prompt", 1.6), compare("gated_fusion", 1.3)
    larger = compare("fused_optimizer", 1.9)
    assert verdict("003-28", loop, smaller) == "CONFIRMED"
    assert verdict("003-28", loop, smaller, larger) == "CONDITIONAL"
    assert verdict("003-28", compare("apply_prompt", 1.0), smaller) == "REFUTED"
    # All together contains the loop, so it does not compete with it.
    assert verdict("003-28", loop, compare("all_together", 2.5)) == "CONFIRMED"


@pytest.mark.parametrize(("forward_ratio", "expected"), [(1.05, "REFUTED"), (5.0, "CONFIRMED")])
def test_where_the_loop_costs(forward_ratio: float, expected: str) -> None:
    step = compare("apply_prompt", 1.2, 0.5, "part, forward and backward")  # saves 83 ms
    forward = compare("apply_prompt", forward_ratio, 0.1, "part, forward")  # saves 5 or 80 ms
    assert verdict("003-31", forward, step) == expected
    assert verdict("003-31", step) == "NOT TESTABLE HERE"


def with_map(found: LaunchMap) -> OptimizeRecord:
    return optimize_record(maps=[found], gpus=1)


def test_the_loop_is_counted() -> None:
    assert result(with_map(launch_map()), "003-29 the loop").verdict == "CONFIRMED"
    assert result(with_map(launch_map(trips=17)), "003-29 the loop").verdict == "REFUTED"
    assert "192" in result(with_map(launch_map()), "003-29 the loop").measured


@pytest.mark.parametrize(
    ("forward", "backward", "expected"),
    [(1, 0, "CONFIRMED"), (1, 3, "CONDITIONAL"), (4, 0, "REFUTED")],
)
def test_launches_per_pass(forward: int, backward: int, expected: str) -> None:
    trips = 6 * BATCH
    line = launch_line("loop", trips, forward * trips, backward * trips)
    assert result(with_map(replace(launch_map(), lines=(line,))), "003-30").verdict == expected


def test_the_share_of_the_heads() -> None:
    optimised = launch_map("optimised")
    assert "10 %" in result(with_map(optimised), "003-92").measured
    without = replace(optimised, lines=optimised.lines[:2])
    assert result(with_map(without), "003-92").verdict == "REFUTED"
    untimed = replace(
        optimised,
        lines=tuple(replace(each, seconds=Reading(None, "off")) for each in optimised.lines),
    )
    assert result(with_map(untimed), "003-92").verdict == "NOT TESTABLE HERE"


@pytest.mark.parametrize(
    ("share", "expected"), [(1.0, "CONFIRMED"), (0.5, "CONDITIONAL"), (0.0, "REFUTED")]
)
def test_saved_bytes(share: float, expected: str) -> None:
    tensor = BATCH * 128 * 21_128 * 4
    found = compare("gated_fusion", 1.3, facts={"saved_bytes": share * tensor})
    assert verdict("003-36 it saves one", found) == expected


def test_operators_that_stay_in_full_precision() -> None:
    def precision(operators: str) -> Comparison:
        facts = {"fp32_operators": operators}
        return compare("mixed_precision", 1.5, equality=not_claimed(), facts=facts)

    assert verdict("003-93", precision("aten::softmax")) == "CONFIRMED"
    assert verdict("003-93", precision("")) == "REFUTED"
    assert verdict("003-93", compare("mixed_precision", 1.5)) == "NOT TESTABLE HERE"


def test_compiling_has_to_pay_for_itself() -> None:
    paid = compare("torch_compile", 1.2, facts={"steps_to_pay_back": 240})
    found = result(optimize_record(paid), "003-101")
    assert (found.verdict, found.condition) == ("CONDITIONAL", "on a run of more than 240 steps")
    assert verdict("003-101", compare("torch_compile", 1.2)) == "CONFIRMED"
    assert verdict("003-101", compare("torch_compile", 0.9, facts=paid.facts)) == "REFUTED"


@pytest.mark.parametrize(
    ("ratio", "expected"), [(2.3, "CONFIRMED"), (1.5, "CONDITIONAL"), (1.0, "REFUTED")]
)
def test_all_together(ratio: float, expected: str) -> None:
    assert verdict("003-44 all", compare("all_together", ratio)) == expected


@pytest.mark.parametrize(
    ("after", "expected"), [(320.0, "CONFIRMED"), (250.0, "CONDITIONAL"), (190.0, "REFUTED")]
)
def test_power_and_its_share_of_the_limit(after: float, expected: str) -> None:
    found = compare("all_together", 2.2, watts=(200.0, after))
    assert verdict("003-46 power", found) == expected
    assert verdict("003-47 the", found) == expected


def test_watts_are_not_invented_on_a_cpu() -> None:
    record = whole_catalogue()
    for start in ("003-46 power", "003-47 the"):
        assert result(record, start).verdict == "NOT TESTABLE HERE"
        assert result(record, start).condition == "this machine has no NVIDIA GPU"


def test_the_ledger_counts_its_verdicts() -> None:
    record = whole_catalogue()
    judged = judge_claims(record, judge_all(record))
    summary, rows = ledger(judged)
    confirmed = sum(each.verdict == "CONFIRMED" for _, each in judged)
    assert summary.startswith(f"{confirmed} CONFIRMED, ")
    assert len(rows.split("\n")) == len(CLAIMS) + 2
