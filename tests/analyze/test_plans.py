"""Are plans predicted from their parts, limits shown with what they cost, and totals right?"""

from __future__ import annotations

import pytest

from diagnose.analyze import derive
from diagnose.analyze.optimize import plans
from diagnose.analyze.optimize.effects import best_changes
from diagnose.analyze.optimize.experiment import judge_all
from diagnose.analyze.units import duration
from diagnose.records.experiments import Comparison, OptimizeRecord
from diagnose.records.stats import Interval
from diagnose.render.optimize import tables
from tests.support.records.experiments import BATCH, side
from tests.support.records.generation import (
    ELSEWHERE,
    answers,
    bundle,
    generation_record,
    limit,
    plan,
    single,
    skipped,
    tried,
    whole_generation,
)


def found_plans(record: OptimizeRecord) -> list[plans.Plan]:
    return plans.find_plans(judge_all(record))


@pytest.mark.parametrize(
    ("made", "verdict"),
    [
        (limit(16, 2.0, 0), "FASTER"),
        (limit(8, 2.0, 3), "OTHER_ANSWERS"),
        # bfloat16 rounds on purpose: its differences are shown beside its speed.
        (tried("bfloat16", 1.5, equality=answers(2)), "FASTER"),
    ],
)
def test_what_cuts_answers_short_is_no_speed_up(made: Comparison, verdict: str) -> None:
    (outcome,) = judge_all(generation_record(made))
    assert outcome.verdict == verdict


def test_a_plan_is_predicted_by_the_product_of_its_parts() -> None:
    first, second, third = found_plans(whole_generation())
    assert first.predicted is not None
    assert first.predicted.center == pytest.approx(1.2 * 1.05 * 0.9, rel=0.01)
    assert second.predicted is not None
    assert second.predicted.center == pytest.approx(1.4 * 1.3 * 0.9, rel=0.01)
    assert third.measured is not None
    assert third.measured.center == pytest.approx(1.7, rel=0.01)
    assert third.difference is not None
    assert third.difference.center == pytest.approx(1.7 / (1.8 * 1.05 * 0.9) - 1, abs=0.01)
    # The second changes answers, so it is not the best of those that keep them.
    assert plans.best_plans(judge_all(whole_generation())) == [third.outcome]


@pytest.mark.parametrize(
    ("measured", "words"),
    [(1.2, "they overlap"), (2.0, "they help each other"), (1.68, "no interaction is visible")],
)
def test_prediction_and_measurement_are_compared(measured: float, words: str) -> None:
    parts = tried("batch_double", 1.4), limit(16, 1.2, 0)
    whole = plan("b", measured, "batch_double, tokens_16")
    assert words in found_plans(generation_record(*bundle(whole, *parts)))[0].interaction


def test_nothing_interacts_where_one_part_acts() -> None:
    whole = plan("a", 1.5, "batch_half_more, pin_memory")
    made = bundle(whole, tried("batch_half_more", 1.2), skipped("pin_memory"))
    (found,) = found_plans(generation_record(*made))
    assert found.interaction == "fewer than two parts act here, so nothing can interact"
    assert found.inert == ("pin_memory",)


# The same part some minutes later: its gain may be another one.
ELSEWHEN = tried("workers_4", 1.1, facts={"within": "plan_b"}, seconds=0.4)


@pytest.mark.parametrize(
    "part",
    [None, tried("workers_4", 1.1), ELSEWHEN],
    ids=["not measured", "tried alone", "in other blocks"],
)
def test_a_part_outside_the_plans_blocks_leaves_no_prediction(part: Comparison | None) -> None:
    whole = plan("b", 1.5, "batch_double, workers_4")
    made = bundle(whole, tried("batch_double", 1.4))
    record = generation_record(*made, *([part] if part else []))
    (found,) = found_plans(record)
    assert (found.predicted, found.difference, found.missing) == (None, None, ("workers_4",))
    assert found.measured is not None
    text = "\n".join(tables.plan_table(judge_all(record)))
    assert "not timed in the plan's own blocks: `workers_4`" in text


def test_a_plan_that_was_not_timed_says_why() -> None:
    record = generation_record(tried("batch_double", 1.4), plan("c", None, "batch_double"))
    assert found_plans(record)[0].measured is None
    assert "not every side" in "\n".join(tables.plan_table(judge_all(record)))


def test_a_gain_over_single_samples_is_not_the_jobs() -> None:
    (best,) = best_changes(
        judge_all(generation_record(single(16, 6.0), tried("batch_double", 1.4)))
    )
    assert best.comparison.key == "batch_double"


def test_plans_that_overlap_are_both_the_best() -> None:
    near = [tried(f"plan_{each}", 1.5, noise=0.05, facts={"parts": "x"}) for each in "ac"]
    outcomes = judge_all(generation_record(*near, plan("b", 3.0, "x", changed=2)))
    assert sorted(each.name for each in plans.best_plans(outcomes)) == ["plan_a", "plan_c"]
    record = generation_record(*near)
    assert plans.combined(record, judge_all(record)) == plans.best_plans(judge_all(record))


@pytest.mark.parametrize(
    ("batch", "processes", "samples", "seconds"),
    [
        (BATCH, 1, 320, 5.0),
        (BATCH, 1, 321, 5.5),  # one batch more
        # Two processes that answer 32 samples in half a second answer 16 each.
        (16, 2, 320, 5.0),
        (8, 2, 320, 5.0),
    ],
)
def test_the_total_is_batches_times_seconds_per_batch(
    batch: int, processes: int, samples: int, seconds: float
) -> None:
    measured = side("before", [0.5] * 12)
    assert plans.eta_seconds(measured, batch, processes, samples).center == pytest.approx(seconds)


def test_before_and_after_are_shown_for_the_users_number() -> None:
    record = whole_generation(samples=3200)
    totals = {each.name: each for each in plans.total_times(record, judge_all(record))}
    assert list(totals) == ["as it was", "processes_2", "Plan A", "Plan B", "Plan C"]
    base = totals["as it was"]
    assert (base.batch, base.processes, base.batches) == (32, 1, 100)
    found = plans.find_base(judge_all(record))
    assert found is not None
    assert found.before is not None
    expected = 100 * derive.step_seconds(found.before).center
    assert base.seconds.center == pytest.approx(expected)
    bold = totals["Plan B"]
    assert bold.batch == 64
    assert bold.seconds.center == pytest.approx(expected / 1.6, rel=0.05)
    assert bold.base_seconds is not None
    assert bold.base_seconds.center == pytest.approx(expected, rel=0.05)
    assert totals["Plan C"].processes == 2


def test_without_a_number_the_guides_is_the_example() -> None:
    record = whole_generation()
    said = tables.totals(record, judge_all(record))[0]
    assert str(plans.EXAMPLE_BATCHES * plans.EXAMPLE_BATCH) in said
    assert "`--samples` takes your number" in said
    assert "`--samples`" not in tables.totals(whole_generation(5), judge_all(record))[0]
    elsewhere = generation_record(tried("kv_cache", 1.5, facts=ELSEWHERE))
    assert tables.totals(elsewhere, judge_all(elsewhere)) == []


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(45.0, "45.0 [44.0, 46.0] s"), (600.0, "10.00 [9.78, 10.22] min"), (12060.0, "h")],
)
def test_durations_have_their_unit(seconds: float, words: str) -> None:
    found = duration(Interval(seconds, seconds * 44 / 45, seconds * 46 / 45))
    assert words in found
