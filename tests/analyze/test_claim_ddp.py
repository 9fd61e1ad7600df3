"""Does every claim about two cards get the verdict that the evidence gives?"""

from __future__ import annotations

from dataclasses import replace

import pytest

from diagnose.analyze.claims.ddp import CLAIMS, judge_ddp_claims
from diagnose.analyze.claims.judges import ClaimResult
from diagnose.analyze.claims.ledger import RESULTS, ledger
from diagnose.analyze.scaling.options import judge_options
from diagnose.records.experiments import Comparison
from diagnose.records.header import Fact, Link, Reading
from diagnose.records.ranks import ScalingRecord
from tests.support.claim_results import by_name, only
from tests.support.records.experiments import compare, ended, wrong
from tests.support.records.scaling import (
    CRASH,
    GRADIENTS,
    Losses,
    counted,
    ddp_options,
    scaling_record,
)


def results(record: ScalingRecord) -> dict[str, ClaimResult]:
    return by_name(judge_ddp_claims(record, judge_options(record)))


def result(record: ScalingRecord, start: str) -> ClaimResult:
    return only(results(record), start)


def verdict(start: str, *comparisons: Comparison, gpus: int = 2) -> str:
    return result(scaling_record(comparisons=comparisons, gpus=gpus), start).verdict


def test_every_claim_is_told_once_and_in_order() -> None:
    names = [(id_, says) for id_, says, _ in CLAIMS]
    assert len(set(names)) == len(names)
    numbers = [int(id_.removeprefix("003-")) for id_, _, _ in CLAIMS]
    assert numbers == sorted(numbers)


def test_without_any_evidence_only_arithmetic_is_decided() -> None:
    empty = replace(scaling_record(), series=(), curve=(), cadence=None, watts=())
    for name, each in results(empty).items():
        if "(arithmetic)" in name:
            assert each.verdict != "NOT TESTABLE HERE", name
            assert each.measured, name
        else:
            assert each.verdict == "NOT TESTABLE HERE", name
            assert each.condition, name


@pytest.mark.parametrize("gpus", [0, 2])
def test_the_rows_fit_the_ledger_of_claims(gpus: int) -> None:
    record = scaling_record(comparisons=ddp_options(), gpus=gpus)
    judged = judge_ddp_claims(record, judge_options(record))
    counts, text = ledger(judged)
    assert all(result.verdict in RESULTS for _, result in judged)
    assert len(text.splitlines()) == len(CLAIMS) + 2
    assert counts.endswith("NOT TESTABLE HERE.")


def test_the_printed_bandwidth_counts_every_byte_twice() -> None:
    found = result(scaling_record(), "003-05")
    assert found.verdict == "CONDITIONAL"
    assert "40 MB / 83 ms = 0.51 GB/s, printed 1.01" in found.measured
    measured = result(scaling_record(gpus=2), "003-51 NCCL")
    assert measured.verdict == "CONFIRMED"
    assert "963 MB/s, or 1.93 GB/s when every byte counts twice" in measured.measured
    fast = scaling_record(gpus=2, link=(1e-5, 300e9))
    assert result(fast, "003-51 NCCL").verdict == "REFUTED"
    assert result(scaling_record(), "003-51 NCCL").condition == "it is said of NCCL, this is gloo"


@pytest.mark.parametrize(
    ("communication", "gpus", "expected"),
    [
        (0.6, 2, "CONFIRMED"),
        (0.06, 2, "CONDITIONAL"),  # below 70 %, but not slower than one
        (0.001, 2, "REFUTED"),
        (0.001, 0, "CONDITIONAL"),  # a CPU does not refute what was said of a GPU
    ],
)
def test_two_slower_than_one(communication: float, gpus: int, expected: str) -> None:
    record = scaling_record(Losses(communication=communication), gpus=gpus)
    assert result(record, "003-49 two cards are").verdict == expected


def test_whether_communication_is_the_cause() -> None:
    assert result(scaling_record(), "003-51 communication").verdict == "CONFIRMED"
    busy = scaling_record(Losses(compute=0.3), gpus=2)
    refuted = result(busy, "003-51 communication")
    assert refuted.verdict == "REFUTED"
    assert "the largest is compute contention" in refuted.measured
    few = result(scaling_record(blocks=4), "003-51 communication")
    assert few.verdict == "NOT TESTABLE HERE"


@pytest.mark.parametrize("gpus", [0, 2])
def test_the_published_no_sync_is_refuted_by_counting(gpus: int) -> None:
    same = compare("accumulate_4", 1.0, form="as published", facts=counted(16, 16))
    record = scaling_record(comparisons=[same], gpus=gpus)
    found = result(record, "003-55")
    assert found.verdict == "REFUTED"
    assert found.measured.startswith("16 → 16 all-reduces per optimiser step")
    fewer = compare("accumulate_4", 1.3, form="as published", facts=counted(16, 4))
    assert verdict("003-55", fewer) == "CONFIRMED"
    assert verdict("003-55", compare("accumulate_4", form="as published")) == "NOT TESTABLE HERE"


def test_accumulation_divides_by_four_only_at_a_fixed_micro_batch() -> None:
    assert verdict("003-57", compare("accumulate_4", 1.4, facts=counted(16, 4))) == "CONDITIONAL"
    assert verdict("003-57", compare("accumulate_4", 1.0, facts=counted(16, 16))) == "REFUTED"
    assert verdict("003-57", ended("accumulate_4", "failed", "it raised")) == "NOT TESTABLE HERE"
    divided = compare("accumulate_4x32", 0.9, facts=counted(4, 4))
    assert verdict("003-81", divided) == "REFUTED"
    assert verdict("003-76", divided) == "REFUTED"
    assert verdict("003-76", divided, gpus=0) == "CONDITIONAL"


def test_buckets() -> None:
    assert verdict("003-82", compare("bucket_cap_200", facts=counted(13, 2))) == "CONFIRMED"
    assert verdict("003-82", compare("bucket_cap_200", facts=counted(1, 1))) == "CONDITIONAL"
    assert verdict("003-61", compare("bucket_cap_200", 1.2)) == "CONFIRMED"
    assert verdict("003-61", compare("bucket_cap_200", 1.0)) == "REFUTED"
    assert verdict("003-58", compare("bucket_cap_100", 1.2)) == "CONFIRMED"
    assert verdict("003-58", wrong("bucket_cap_100", "after")) == "REFUTED"


def test_a_static_graph_with_accumulation_crashes() -> None:
    failed = ended("static_graph_no_sync", "failed", CRASH)
    found = result(scaling_record(comparisons=[failed]), "003-62")
    assert found.verdict == "REFUTED"
    assert CRASH in found.measured
    assert verdict("003-62", compare("static_graph_no_sync", 1.1)) == "CONFIRMED"
    assert verdict("003-62", ended("static_graph_no_sync", "skipped", "x")) == "NOT TESTABLE HERE"


def test_memory_of_the_buckets() -> None:
    whole = compare("bucket_view", 1.0, peaks=(9e9, 9e9 - GRADIENTS))
    part = compare("bucket_view", 1.0, peaks=(9e9, 9e9 - GRADIENTS / 2))
    none = compare("bucket_view", 1.0, peaks=(9e9, 9e9))
    unknown = compare("bucket_view", 1.0)
    assert [verdict("003-97", each) for each in (whole, part, none, unknown)] == [
        "CONFIRMED",
        "CONDITIONAL",
        "REFUTED",
        "NOT TESTABLE HERE",
    ]
    assert verdict("003-98", whole) == "CONFIRMED"
    assert verdict("003-98", none) == "REFUTED"
    assert verdict("003-98", none, gpus=0) == "CONDITIONAL"
    open_question = result(scaling_record(comparisons=[whole]), "003-96")
    assert open_question.verdict == "NOT TESTABLE HERE"
    assert "80.0 MB" in open_question.measured
    assert open_question.condition.startswith("open:")


def test_cadence() -> None:
    assert result(scaling_record(), "003-84").verdict == "CONFIRMED"
    cheap = scaling_record()
    assert cheap.cadence is not None
    cadence = replace(cheap.cadence, evaluation_seconds=Reading(0.1), saving_seconds=Reading(0.1))
    assert result(replace(cheap, cadence=cadence), "003-84").verdict == "CONDITIONAL"


def test_the_old_formula_counts_the_optimiser() -> None:
    assert result(scaling_record(), "003-89").verdict == "REFUTED"
    light = scaling_record(Losses(optimizer=0.0005, rest=0.0))
    assert result(light, "003-89").verdict == "CONDITIONAL"


def test_power() -> None:
    starved = scaling_record(gpus=2, watts=[Reading(98.0), Reading(95.0)])
    assert result(starved, "003-50").verdict == "CONFIRMED"
    assert result(starved, "003-91").verdict == "CONFIRMED"
    full = scaling_record(gpus=2, watts=[Reading(440.0), Reading(430.0)])
    assert result(full, "003-50").verdict == "CONDITIONAL"
    assert result(full, "003-91").verdict == "REFUTED"


def test_what_one_run_cannot_vary_is_not_decided() -> None:
    record = scaling_record(gpus=2)
    assert "env-sweep" in result(record, "003-52").condition
    assert result(record, "003-85").verdict == "NOT TESTABLE HERE"
    assert "input contention is" in result(record, "003-85").measured


def test_topology() -> None:
    record = scaling_record(gpus=2)
    assert result(record, "003-54").verdict == "CONFIRMED"
    near = (Link(0, 1, Fact("PIX"), Fact("ok")),)
    other = replace(
        record, header=replace(record.header, machine=replace(record.header.machine, links=near))
    )
    assert result(other, "003-54").verdict == "CONDITIONAL"


def test_advice_is_judged_option_by_option() -> None:
    faster = [compare("bucket_cap_200", 1.2), compare("static_graph", 1.1)]
    assert verdict("003-90", *faster) == "CONFIRMED"
    mixed = result(
        scaling_record(comparisons=[*faster, compare("bucket_view", 1.0)], gpus=2), "003-90"
    )
    assert mixed.verdict == "CONDITIONAL"
    assert "bucket_cap_200, static_graph" in mixed.condition
    assert verdict("003-90", compare("static_graph", 0.9)) == "REFUTED"
    assert verdict("003-90", compare("static_graph", 1.2, blocks=4)) == "NOT TESTABLE HERE"
