"""Which batch size is recommended, and when is an answer proven?"""

from __future__ import annotations

from dataclasses import replace

import pytest

from diagnose.analyze.batch_size import answer, crops_rows, judge
from diagnose.records.batch_size import Configuration, ProbeStatus
from diagnose.records.run import StageResult
from diagnose.render.batch_size import crops_table
from tests.support.records.batch_size import (
    batch_size_record,
    broken,
    configuration,
    loader,
    probe,
    sweep,
)


def test_three_answers() -> None:
    found = judge(configuration())
    assert (found.largest, found.is_exact) == (25, True)
    assert (found.knee, found.use) == (8, 8), "400 of 413 samples/s"


def test_the_loader_is_the_limit() -> None:
    found = judge(configuration(loader=loader(250.0)))
    assert (found.knee, found.use) == (8, 4), "286 samples/s are more than the loader delivers"
    assert judge(configuration(loader=loader(5000.0))).use == 8, "this loader limits nothing"
    few = judge(configuration(sweep=sweep(slots=2), loader=loader(250.0)))
    assert few.use == 8, "without intervals it is not proven"


def test_the_reason_says_what_stops_a_larger_batch() -> None:
    growing = sweep({1: 0.010, 8: 0.011, 25: 0.012})
    found = judge(configuration(sweep=growing))
    assert found.use == found.largest == 25
    assert found.reason.startswith("memory is the limit")
    cut = configuration(sweep=growing, probes=(probe(1), probe(25)), stopped="no time")
    assert judge(cut).reason == "the throughput still grows; no time"
    few = judge(configuration(sweep=sweep({1: 0.010, 8: 0.011})))
    assert few.reason.startswith("the fastest batch that was timed")


@pytest.mark.parametrize("status", ["hung", "failed"])
def test_only_memory_makes_an_answer_exact(status: ProbeStatus) -> None:
    probes = (probe(1), probe(25, fresh=True), broken(26, status))
    found = judge(configuration(probes=probes, sweep=sweep({1: 0.010, 25: 0.012})))
    assert not found.is_exact
    assert found.doubt.startswith(f"batch 26 {status}, possibly not because of memory: ")
    assert "memory is the limit" not in found.reason
    again = (*probes, probe(26))
    assert judge(configuration(probes=again)).is_exact, "then the memory refused it too"


def test_what_a_fresh_process_overrules_bounds_nothing() -> None:
    refused = probe(25, limit=24)  # beside what earlier probes had left
    fresh = [probe(batch, fresh=True) for batch in (24, 25, 26)]
    found = judge(configuration(probes=(probe(1), probe(24), refused, *fresh)))
    assert (found.largest, found.is_exact) == (25, True)


def test_without_intervals_nothing_is_proven() -> None:
    found = judge(configuration(sweep=sweep(slots=2)))
    assert (found.knee, found.use) == (None, 8), "the point estimates still say something"
    assert found.reason.startswith("not proven: point estimates only")


def test_an_interval_that_reaches_below_is_no_knee() -> None:
    noisy = judge(configuration(sweep=sweep(noise=0.2)))
    eight = next(row for row in noisy.rows if row.batch == 8)
    assert (eight.of_peak.low or 1) < 0.95
    assert (noisy.knee or 0) > 8
    assert "8 may be as good" in noisy.reason or "8 or" in noisy.reason


def test_gains_are_paired_within_blocks() -> None:
    """A machine that slows down by half in the middle of the sweep changes no ratio."""
    calm = sweep()
    slowed = tuple(
        replace(
            each,
            timing=replace(
                each.timing,
                slot_seconds=tuple(
                    seconds * (1 if place < 5 else 1.5)
                    for place, seconds in enumerate(each.timing.slot_seconds)
                ),
            ),
        )
        for each in calm.measurements
    )
    before = judge(configuration(sweep=calm)).rows
    after = judge(configuration(sweep=replace(calm, measurements=slowed))).rows
    for first, second in zip(before, after, strict=True):
        assert second.gain.low == pytest.approx(first.gain.low)
        assert second.gain.high == pytest.approx(first.gain.high)


def test_nothing_fits() -> None:
    refused = replace(probe(1), status="out of memory", reason="no room", step_seconds=())
    none = configuration(status="failed", reason="batch 1: no room", probes=(refused,), sweep=None)
    found = judge(none)
    assert (found.largest, found.knee, found.use) == (None, None, None)
    assert answer(batch_size_record(none)) == "No batch size can be used: batch 1: no room."


def test_a_sweep_that_broke_leaves_the_largest() -> None:
    found = judge(configuration(sweep=StageResult("sweep", "", "hung", "no result after 9 s")))
    assert (found.largest, found.use) == (25, None)
    assert found.reason == "the throughput is unknown: no result after 9 s"


def test_every_configuration_has_its_clause_and_an_unfinished_run_says_so() -> None:
    both = batch_size_record(*(configuration(key=f"max_crops {cap}") for cap in (12, 13)))
    assert answer(both).startswith("max_crops 12: use batch 8")
    assert "; max_crops 13: use batch 8" in answer(both)
    assert answer(replace(both, complete=False)).endswith("The run was not finished.")


def test_the_guides_factors_stand_beside_what_the_memory_allows() -> None:
    def of(crops: int, largest: int) -> Configuration:
        probes = tuple(probe(each, limit=largest) for each in (largest, largest + 1))
        made = configuration(settings={"max_crops": crops, "tiles_most": crops + 1}, probes=probes)
        return replace(made, key=f"max_crops {crops}")

    record = batch_size_record(of(4, 20), of(8, 10), of(12, 16), of(36, 8))
    rows = crops_rows([judge(each) for each in record.configurations])
    assert [(each.max_crops, each.guide_batch) for each in rows] == [
        (4, 20), (8, 15), (12, 10), (36, 8),
    ]  # fmt: skip
    errors = [each.error for each in rows]
    assert errors == [0.0, pytest.approx(0.5), pytest.approx(-0.375), 0.0]
    text = "\n".join(crops_table([judge(each) for each in record.configurations]))
    assert "| 8 | 9 | 10 |" in text
    assert "50 %" in text
    assert crops_table([judge(configuration())]) == []
