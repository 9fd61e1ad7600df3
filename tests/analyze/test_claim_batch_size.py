"""What becomes of the guides' claims about batch sizes under evidence for and against them?"""

from __future__ import annotations

from dataclasses import replace

import pytest

from diagnose.analyze.batch_size.choice import judge
from diagnose.analyze.claims.batch_size import CLAIMS, judge_batch_claims
from diagnose.analyze.claims.generation_arithmetic import SCALE_FACTORS
from diagnose.analyze.claims.judges import ClaimResult
from diagnose.measure.batch_size.estimates import BY_MAX_CROPS
from diagnose.records.batch_size import BatchSizeRecord, Configuration, Estimate, Probe
from diagnose.records.header import Reading, WorkloadFacts
from diagnose.records.run import StageResult
from diagnose.render.batch_size.report import render_batch_size
from tests.render.test_batch_size import MB, STEPS, configuration, record, sweep
from tests.support.records.parts import gpu_use, measurement


def asked(
    *configurations: Configuration, workload: str = "vqa", device: str = "cuda"
) -> BatchSizeRecord:
    made = record(*configurations)
    return replace(
        made,
        header=replace(made.header, machine=replace(made.header.machine, device=device)),
        workload=WorkloadFacts(workload, "seed", {}, 100_000_000),
    )


def result(start: str, *configurations: Configuration, device: str = "cuda") -> ClaimResult:
    made = asked(*configurations, device=device)
    judged = judge_batch_claims(made, [judge(each) for each in made.configurations])
    found = [each for claim, each in judged if f"{claim.id} {claim.says}".startswith(start)]
    assert len(found) == 1
    return found[0]


def crops(count: int, largest: int, seconds: float = 0.5) -> Configuration:
    """A search that ended exactly at this batch."""

    def probe(batch: int, *, fresh: bool = False) -> Probe:
        fits = batch <= largest
        return Probe(
            batch,
            "fits" if fits else "out of memory",
            Reading((200 + 28 * batch) * MB),
            Reading(1000 * MB),
            (0.01,) if fits else (),
            "" if fits else "out of memory",
            seconds=seconds,
            fresh=fresh,
        )

    probes = (probe(1), probe(largest), probe(largest + 1), probe(largest, fresh=True))
    return configuration(key=f"max_crops {count}", settings={"max_crops": count}, probes=probes)


def test_only_jobs_that_write_are_held_against_the_guides() -> None:
    own = asked(workload="mine")
    assert judge_batch_claims(own, []) == []
    assert "## Claims" not in render_batch_size(own)
    assert "## Claims" in render_batch_size(asked())


def test_claims_stand_once_and_each_has_evidence_or_a_reason() -> None:
    names = [(id_, says) for id_, says, _ in CLAIMS]
    assert len(set(names)) == len(names)
    for empty in (asked(), asked(configuration(probes=(), sweep=None))):
        for _, each in judge_batch_claims(empty, [judge(c) for c in empty.configurations]):
            assert each.measured or each.condition


def test_only_what_grows_with_the_batch_doubles() -> None:
    found = result("000-08", configuration())
    assert found.verdict == "REFUTED"
    # 200 + 28 n MB: 1992 MB at 64 over 1096 MB at 32.
    assert "200 MB + 28.0 MB per sample" in found.measured
    assert "1.82x" in found.measured


@pytest.mark.parametrize(
    ("batches", "expected"),
    [((20, 20), "CONDITIONAL"), ((20, 10), "REFUTED"), ((10, 20), "CONFIRMED")],
)
def test_more_crops_need_more_memory(batches: tuple[int, int], expected: str) -> None:
    assert result("002-13", crops(4, batches[0]), crops(12, batches[1])).verdict == expected


def test_one_setting_of_crops_decides_nothing() -> None:
    assert result("002-13", crops(4, 20)).verdict == "NOT TESTABLE HERE"
    assert result("002-14", crops(4, 20)).verdict == "NOT TESTABLE HERE"


@pytest.mark.parametrize(
    ("largest", "device", "expected"),
    [
        (11, "cuda", "CONFIRMED"),
        (18, "cuda", "REFUTED"),
        (18, "cpu", "CONDITIONAL"),
        (20, "cuda", "CONDITIONAL"),  # the pictures have no more tiles
    ],
)
def test_the_guides_factors_are_held_against_what_was_found(
    largest: int, device: str, expected: str
) -> None:
    found = result("002-14", crops(4, 20), crops(12, largest), device=device)
    assert found.verdict == expected
    assert "0.500 by the guide" in found.measured


def test_the_search_begins_with_the_factors_that_are_judged() -> None:
    assert tuple(BY_MAX_CROPS) == SCALE_FACTORS


@pytest.mark.parametrize(
    ("seconds", "repeats", "expected"),
    [
        (1.5, 1, "CONFIRMED"),
        (4.0, 1, "CONDITIONAL"),
        (1.5, 2, "CONDITIONAL"),
        (4.0, 2, "REFUTED"),
    ],
)
def test_probes_are_counted(seconds: float, repeats: int, expected: str) -> None:
    made = crops(4, 20, seconds)
    assert result("002-28", replace(made, probes=made.probes * repeats)).verdict == expected


def test_an_answer_counts_when_a_fresh_process_ran_it() -> None:
    confirmed = crops(4, 20)
    assert result("002-30", confirmed).verdict == "CONFIRMED"
    unconfirmed = replace(confirmed, probes=confirmed.probes[:-1])
    assert result("002-30", confirmed, unconfirmed).verdict == "CONDITIONAL"
    assert result("002-31", confirmed).verdict == "CONFIRMED"
    cut_short = replace(confirmed, probes=confirmed.probes[:2])
    assert result("002-31", cut_short).verdict == "CONDITIONAL"
    assert result("002-30", cut_short).verdict == "NOT TESTABLE HERE", "nothing was refused"


def test_a_batch_that_fits_must_run_in_the_sweep() -> None:
    broke = StageResult("sweep", "Batch sizes", "failed", "out of memory: CUDA")
    found = result("002-30", replace(crops(4, 20), sweep=broke))
    assert (found.verdict, found.condition) == ("REFUTED", "out of memory: CUDA")
    other = StageResult("sweep", "Batch sizes", "failed", "KeyError: 'x'")
    assert result("002-30", replace(crops(4, 20), sweep=other)).verdict == "CONFIRMED"


def test_no_largest_batch_where_one_fitted_and_then_did_not() -> None:
    made = crops(4, 20)
    one, largest, larger, _ = made.probes
    refused = replace(larger, batch=20, fresh=True)
    lost = replace(made, probes=(one, largest, larger, refused))
    assert result("002-31", lost).verdict == "REFUTED"
    settled = replace(made, probes=(*lost.probes, replace(largest, batch=19, fresh=True)))
    assert result("002-31", settled).verdict == "CONFIRMED", "19 fits, 20 does not"


@pytest.mark.parametrize(
    ("low", "device", "expected"),
    [(16, "cuda", "CONFIRMED"), (1, "cuda", "REFUTED"), (1, "cpu", "CONDITIONAL")],
)
def test_rules_of_thumb_are_held_against_the_limit(low: int, device: str, expected: str) -> None:
    ruled = replace(crops(4, 20), estimates=(Estimate("12 GB of memory", low, 2 * low),))
    assert result("004-09", ruled, device=device).verdict == expected


def test_the_sweep_is_held_against_the_table() -> None:
    # 100 samples/s at batch 1, 182 at 2 and 400 at 8.
    assert result("004-47", configuration()).verdict == "CONFIRMED"
    assert result("004-49 batches", configuration()).verdict == "CONFIRMED"
    slow = configuration(sweep=sweep({1: 0.01, 2: 0.03, 8: 0.075}))
    assert result("004-47", slow).verdict == "REFUTED"
    assert result("004-47", slow, device="cpu").verdict == "CONDITIONAL", "claimed of a GPU"
    assert result("004-49 batches", slow).verdict == "CONDITIONAL"
    assert result("004-48", slow).verdict == "NOT TESTABLE HERE"


def test_the_largest_is_not_always_the_one_to_use() -> None:
    found = result("004-53", configuration())
    assert found.verdict == "REFUTED"
    assert "25 fit, use 8" in found.measured
    steep = {batch: 0.01 + 1e-4 * batch for batch in STEPS}
    assert result("004-53", configuration(sweep=sweep(steep))).verdict == "CONFIRMED"


def test_a_gain_without_an_interval_decides_nothing() -> None:
    found = result("004-47", configuration(sweep=sweep(slots=2)))
    assert found.verdict == "NOT TESTABLE HERE"
    assert "(no interval)" in found.measured
    wide = result("004-47", configuration(sweep=sweep({1: 0.01, 2: 0.0105}, noise=0.4)))
    assert wide.verdict == "NOT TESTABLE HERE"
    assert wide.condition == "undecided: the interval reaches out of 1.36 to 2.04x"
    assert result("004-53", configuration(sweep=sweep(slots=2))).verdict == "NOT TESTABLE HERE"


def test_a_gain_is_taken_within_one_configuration() -> None:
    singles = configuration(key="max_crops 4", sweep=sweep({1: 0.01, 2: 0.011}))
    eights = configuration(key="max_crops 12", sweep=sweep({2: 0.011, 8: 0.02}))
    assert result("004-49 batches", singles, eights).verdict == "NOT TESTABLE HERE"
    assert result("004-49 util", singles, eights).verdict == "NOT TESTABLE HERE"
    assert result("004-49 batches", singles, configuration()).verdict == "CONFIRMED"


@pytest.mark.parametrize(
    ("seconds", "device", "expected"),
    [
        (0.02, "cuda", "CONFIRMED"),  # 10x the samples/s for 3.33x the memory
        (0.1, "cuda", "REFUTED"),  # 2x
        (0.1, "cpu", "CONDITIONAL"),
    ],
)
def test_memory_is_better_used_if_every_byte_brings_more(
    seconds: float, device: str, expected: str
) -> None:
    timed = replace(crops(4, 20), sweep=sweep({1: 0.01, 20: seconds}))
    found = result("004-02", timed, device=device)
    assert found.verdict == expected
    assert "batch 1: 23 % of the free memory, batch 20: 76 %" in found.measured
    few = replace(timed, sweep=sweep({1: 0.01, 20: seconds}, slots=2))
    assert result("004-02", few).verdict == "NOT TESTABLE HERE"
    assert result("004-02", configuration(probes=())).verdict == "NOT TESTABLE HERE"


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ((0.3, 0.8), "CONFIRMED"),
        ((0.9, 0.95), "CONDITIONAL"),
        ((0.9, 0.9), "REFUTED"),
    ],
)
def test_utilisation_is_held_against_the_printed_shares(
    shares: tuple[float, float], expected: str
) -> None:
    made = [
        measurement(f"batch {n}", 0.01, samples=n, gpus=[gpu_use(utilization=share)])
        for n, share in zip((1, 8), shares, strict=True)
    ]
    timed = StageResult("sweep", "Batch sizes", "done", measurements=tuple(made), seconds=9.0)
    assert result("004-49 util", configuration(sweep=timed)).verdict == expected
    assert result("004-49 util", configuration(sweep=None)).verdict == "NOT TESTABLE HERE"
