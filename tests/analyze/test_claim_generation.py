"""What becomes of the evaluation guides' claims under evidence for and against them?"""

from __future__ import annotations

from dataclasses import replace

import pytest

from diagnose.analyze.claims import generation_arithmetic as arithmetic
from diagnose.analyze.claims.generation import ACCURACY_GUIDE, BATCH_GUIDE, CROPS_GUIDE
from diagnose.analyze.claims.judges import Claim, ClaimResult
from diagnose.analyze.claims.ledger import judge_claims, ledger
from diagnose.analyze.optimize.experiment import judge_all
from diagnose.records.experiments import Comparison, OptimizeRecord
from diagnose.records.header import Setting
from tests.support.records.experiments import wrong
from tests.support.records.generation import (
    PASS,
    generation_record,
    limit,
    plan,
    single,
    skipped,
    tried,
    whole_generation,
)
from tests.support.records.series import with_utilization


def results(record: OptimizeRecord) -> dict[str, ClaimResult]:
    judged = judge_claims(record, judge_all(record))
    return {f"{claim.id} {claim.says}": result for claim, result in judged}


def result(start: str, *comparisons: Comparison, gpus: int = 1) -> ClaimResult:
    named = results(generation_record(*comparisons, gpus=gpus))
    found = [each for name, each in named.items() if name.startswith(start)]
    assert len(found) == 1, f"{start}: {len(found)} claims"
    return found[0]


def verdict(start: str, *comparisons: Comparison, gpus: int = 1) -> str:
    return result(start, *comparisons, gpus=gpus).verdict


def with_facts(comparison: Comparison, **facts: Setting) -> Comparison:
    """None leaves a fact out."""
    merged = {**comparison.facts, **facts}
    return replace(comparison, facts={k: v for k, v in merged.items() if v is not None})


@pytest.mark.parametrize("workload", ["textgen", "vqa"])
def test_both_jobs_are_held_against_all_three_guides(workload: str) -> None:
    judged = judge_claims(generation_record(workload=workload), ())
    assert {claim.id[:3] for claim, _ in judged} == {"000", "002", "004"}


@pytest.mark.parametrize("guide", [ACCURACY_GUIDE, CROPS_GUIDE, BATCH_GUIDE])
def test_claims_stand_in_the_order_of_their_guide_and_once(guide: tuple[Claim, ...]) -> None:
    names = [(claim.id, claim.says) for claim in guide]
    assert len(set(names)) == len(names)
    numbers = [int(claim.id[4:]) for claim in guide]
    assert numbers == sorted(numbers)


def test_without_evidence_only_arithmetic_is_decided() -> None:
    for name, each in results(generation_record()).items():
        decided = "(arithmetic)" in name
        assert (each.verdict != "NOT TESTABLE HERE") is decided, name
        assert each.measured if decided else each.condition, name


def test_a_sound_run_answers_every_claim_with_evidence_or_a_reason() -> None:
    record = whole_generation()
    judged = judge_claims(record, judge_all(record))
    assert all(result.measured or result.condition for _, result in judged)
    text = ledger(judged)[1]
    assert len(text.splitlines()) == len(judged) + 2


@pytest.mark.parametrize(
    ("start", "expected", "words"),
    [
        ("000-03", "CONFIRMED", "62.5 %"),
        ("000-05", "CONFIRMED", "6699 × 1.80 s = 3.35 h"),
        ("000-08 a batch", "CONDITIONAL", "doubles the weights too"),
        ("000-28", "CONFIRMED", "25.1 min"),
        ("000-34 plan A: 2", "CONDITIONAL", "2.23x to 3.35x, printed 2 to 3x"),
        ("000-34 plan A: its", "CONFIRMED", "2.2 to 2.4x"),
        ("000-36 plan B: 4", "CONFIRMED", "4.02x to 5.02x"),
        ("000-36 plan B: its", "CONFIRMED", "4.4 to 4.8x"),
        ("000-38 plan C: 16", "CONFIRMED", "13.4x to 16.7x"),
        ("000-38 plan C: its", "REFUTED", "17.6 to 19.2x, printed 16x"),
        ("002-13", "REFUTED", "32 for 12 crops and 64 for 4"),
        ("002-29", "REFUTED", "1 to 10 s, printed 10 to 30 s"),
        ("002-33", "CONFIRMED", "32 of 64"),
        ("002-34", "CONFIRMED", "25 of 64"),
        ("002-36", "CONFIRMED", "48 of 64"),
        ("004-47 120", "CONFIRMED", "1.71"),
        ("004-48 120", "CONFIRMED", "2.67"),
        ("004-49 120", "CONFIRMED", "3.43"),
    ],
)
def test_the_guides_own_arithmetic(start: str, expected: str, words: str) -> None:
    found = result(start)
    assert found.verdict == expected
    assert words in found.measured


def test_other_figures_would_be_judged_otherwise() -> None:
    assert arithmetic.doubled_memory(100).verdict == "CONDITIONAL"
    assert arithmetic.doubled_memory(80).verdict == "REFUTED"
    assert arithmetic.larger_first(12, 4).verdict == "REFUTED"
    assert arithmetic.larger_first(4, 12).verdict == "CONFIRMED"


@pytest.mark.parametrize(
    ("fixed", "natural", "expected"),
    [(2.0, 1.9, "CONFIRMED"), (2.0, 1.05, "CONDITIONAL"), (1.1, 1.05, "REFUTED")],
)
def test_a_lower_limit_counts_in_both_ways_to_stop(
    fixed: float, natural: float, expected: str
) -> None:
    found = result("000-21", limit(16, fixed, 8, natural=False), limit(16, natural, 0))
    assert found.verdict == expected
    assert "fixed length: " in found.measured
    assert "32 → 16 tokens, 8 of 8 answers change" in found.measured


def test_one_way_to_stop_is_not_enough() -> None:
    assert verdict("000-21", limit(16, 2.0, 8, natural=False)) == "NOT TESTABLE HERE"


def test_coverage_is_of_the_answers_at_hand() -> None:
    covered = result("000-18", limit(16, 1.0, 0))  # 99.5 %
    cut = result("000-19", limit(8, 1.0, 0))  # 90 %
    short = result("000-17", limit(16, 1.0, 0))
    assert {each.verdict for each in (covered, cut, short)} == {"CONDITIONAL"}
    assert "these answers are others" in cut.condition
    holds = [each.measured.endswith(": it holds for them") for each in (covered, cut, short)]
    assert holds == [True, False, True]


@pytest.mark.parametrize(
    ("ratio", "gpus", "expected"),
    [(1.15, 1, "CONFIRMED"), (2.0, 1, "REFUTED"), (2.0, 0, "CONDITIONAL"), (0.9, 1, "REFUTED")],
)
def test_the_loader_gains_what_was_promised(ratio: float, gpus: int, expected: str) -> None:
    assert verdict("000-15", tried("workers_4", ratio), gpus=gpus) == expected


def test_what_does_not_apply_is_never_a_gain() -> None:
    found = result("000-11", skipped("pin_memory"))
    assert found.verdict == "NOT TESTABLE HERE"
    assert "not applicable on the CPU" in found.condition


def test_the_default_is_named() -> None:
    found = result("000-14", tried("prefetch_2", 1.0))
    assert found.verdict == "REFUTED"
    assert "default" in found.condition


@pytest.mark.parametrize(("peak", "expected"), [(1.9e9, "CONFIRMED"), (1.2e9, "REFUTED")])
def test_twice_the_batch_is_not_always_twice_the_memory(peak: float, expected: str) -> None:
    assert verdict("000-08 twice", tried("batch_double", 1.0, peaks=(1e9, peak))) == expected


@pytest.mark.parametrize(
    ("ratio", "whole", "gpus", "expected"),
    [
        (2.5, True, 1, "CONFIRMED"),
        (1.2, True, 1, "REFUTED"),
        (4.0, True, 1, "REFUTED"),
        (1.2, True, 0, "CONDITIONAL"),
        (1.2, False, 1, "CONDITIONAL"),
    ],
)
def test_a_plan_is_measured_as_a_whole(ratio: float, whole: bool, gpus: int, expected: str) -> None:
    made = plan("a", ratio, "workers_4")
    tried_plan = with_facts(made, left_out=None) if whole else made
    found = result("000-34 plan A gains", tried("workers_4", 1.1), tried_plan, gpus=gpus)
    assert found.verdict == expected
    assert "x, predicted 1." in found.measured
    assert ("pin_memory" in found.condition) is not whole
    if expected != "CONFIRMED":
        assert f"the gain is {'less' if ratio < 2 else 'more'} here" in found.condition


def test_a_wide_interval_confirms_nothing() -> None:
    """2 to 3x, or about 2x, is claimed; from far below to far above is measured."""
    wide = tried("plan_a", 2.0, noise=0.2, facts={"parts": "workers_4"})
    found = result("000-34 plan A gains", tried("workers_4", 1.1), wide)
    assert found.verdict == "NOT TESTABLE HERE"
    assert "undecided: the interval is partly outside 2x to 3x" in found.condition
    few = tried("plan_a", 2.5, blocks=3, facts={"parts": "workers_4"})
    found = result("000-34 plan A gains", tried("workers_4", 1.1), few)
    assert found.verdict == "NOT TESTABLE HERE"
    assert "too few blocks" in found.condition
    natural = tried("tokens_16", 1.6, noise=0.2)
    found = result("000-21", limit(16, 2.0, 8, natural=False), natural)
    assert found.verdict == "NOT TESTABLE HERE"
    assert found.condition == "undecided: an interval is partly more than 20% off 2x"


@pytest.mark.parametrize(
    ("processes", "ratio", "expected"),
    [
        (2, 1.9, "NOT TESTABLE HERE"),
        (2, 16.0, "NOT TESTABLE HERE"),
        (8, 16.0, "CONFIRMED"),
        (8, 6.0, "REFUTED"),
    ],
)
def test_eight_cards_are_judged_where_they_were_used(
    processes: int, ratio: float, expected: str
) -> None:
    made = with_facts(plan("c", ratio, "workers_4"), left_out=None, after_processes=processes)
    found = result("000-38 plan C gains", tried("workers_4", 1.1), made)
    assert found.verdict == expected
    assert str(ratio).rstrip("0").rstrip(".") in found.measured
    assert ("it needs 8 devices; 2 processes were tried" in found.condition) is (processes == 2)


@pytest.mark.parametrize(
    ("processes", "ratio", "expected"),
    [(2, 1.9, "CONFIRMED"), (2, 1.3, "REFUTED"), (4, 1.9, "REFUTED"), (4, 3.8, "CONFIRMED")],
)
def test_processes_scale_by_their_number(processes: int, ratio: float, expected: str) -> None:
    made = tried("processes_2", ratio, facts={"after_processes": processes})
    assert verdict("000-26", made) == expected


def test_the_guides_order_is_held_against_the_measured_one() -> None:
    def ranked(tokens: float, loader: float, batch: float = 1.1, noise: float = 0.001) -> str:
        return verdict(
            "000-40 first",
            limit(16, tokens, 0),
            tried("workers_4", loader, noise=noise),
            tried("batch_half_more", batch),
            tried("processes_2", 1.8),
        )

    assert ranked(2.0, 1.5) == "CONFIRMED"
    assert ranked(1.3, 1.5) == "REFUTED"
    # The first against the last, with one between them that nobody knows.
    assert ranked(1.3, 1.45, batch=1.6, noise=0.2) == "REFUTED"
    assert ranked(1.5, 1.5) == "NOT TESTABLE HERE"
    assert ranked(1.6, 1.5, noise=0.2) == "NOT TESTABLE HERE"
    assert verdict("000-40 first", limit(16, 2.0, 0)) == "NOT TESTABLE HERE"


def test_the_most_effective_saves_most() -> None:
    more = tried("processes_2", 1.8)
    assert verdict("000-40 several", more, tried("batch_double", 1.4)) == "CONFIRMED"
    assert verdict("000-40 several", more, tried("batch_double", 2.4)) == "CONDITIONAL"
    close = result("000-40 several", more, tried("batch_double", 1.8))
    assert close.verdict == "NOT TESTABLE HERE"
    assert close.condition == "undecided: batch_double may save as much"
    assert verdict("000-40 several", more) == "NOT TESTABLE HERE"
    # The best of what only costs time is no gain.
    harmful = result("000-40 several", tried("processes_2", 0.9), tried("batch_double", 0.8))
    assert harmful.verdict == "CONDITIONAL"
    assert "more is saved by no change at all" in harmful.condition


def test_published_batches_do_not_answer_like_single_samples() -> None:
    found = result("004-01 batches answer like", single(4, 2.7), wrong("batch_4", scope=PASS))
    assert found.verdict == "REFUTED"
    assert "15 of 16 samples differ" in found.measured
    assert "prompts of one length" in found.condition


@pytest.mark.parametrize(
    ("ratio", "expected"), [(1.7, "CONFIRMED"), (1.2, "REFUTED"), (0.9, "REFUTED")]
)
def test_the_table_of_batches(ratio: float, expected: str) -> None:
    assert verdict("004-47 batches", single(2, ratio)) == expected


@pytest.mark.parametrize(
    ("sixteen", "expected"), [(5.0, "CONFIRMED"), (3.4, "CONDITIONAL"), (2.0, "REFUTED")]
)
def test_the_largest_batch_must_also_be_the_fastest(sixteen: float, expected: str) -> None:
    assert verdict("004-53", single(8, 3.4), single(16, sixteen)) == expected


@pytest.mark.parametrize(("after", "expected"), [(0.8, "CONFIRMED"), (0.2, "REFUTED")])
def test_utilisation_rises_with_the_batch(after: float, expected: str) -> None:
    watched = with_utilization(tried("batch_8", 3.4, watts=(200.0, 300.0)), 0.3, after)
    assert verdict("004-49 utilisation", watched) == expected


@pytest.mark.parametrize(("share", "expected"), [(0.6, "CONFIRMED"), (1.0, "REFUTED")])
def test_an_idle_device_is_seen(share: float, expected: str) -> None:
    watched = with_utilization(tried("workers_4", 1.0, watts=(200.0, 200.0)), share, share)
    assert verdict("000-02", watched) == expected
