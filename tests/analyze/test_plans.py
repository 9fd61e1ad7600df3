"""Are plans predicted from their parts, limits told with what they cost, and totals right?"""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from diagnose.analyze import derive
from diagnose.analyze.optimize.coverage import coverage_lines
from diagnose.analyze.optimize.experiment import Outcome, judge_all
from diagnose.analyze.optimize.plans import (
    EXAMPLE_BATCH,
    EXAMPLE_BATCHES,
    eta_lines,
    eta_seconds,
    find_base,
    find_plans,
    plan_lines,
    priority_lines,
    rank,
)
from diagnose.analyze.units import duration
from diagnose.records import codec
from diagnose.records.experiments import OptimizeRecord
from diagnose.records.stats import Interval
from diagnose.render.optimize.report import answer, render_optimize
from tests.support.records.experiments import BATCH, compare, optimize_record, side
from tests.support.records.generation import (
    ELSEWHERE,
    answers,
    generation_record,
    limit,
    plan,
    single,
    tried,
    whole_generation,
)


def outcomes(record: OptimizeRecord | None = None) -> tuple[Outcome, ...]:
    return judge_all(record or whole_generation())


def verdicts(record: OptimizeRecord) -> dict[str, str]:
    return {each.comparison.key: each.verdict for each in judge_all(record)}


def test_what_cuts_answers_short_is_no_speed_up() -> None:
    found = verdicts(generation_record(limit(16, 2.0, 0), limit(8, 2.0, 3)))
    assert found == {"tokens_16": "FASTER", "tokens_8": "OTHER_ANSWERS"}
    text = render_optimize(generation_record(limit(8, 2.0, 3)))
    row = next(line for line in text.splitlines() if line.startswith("| tokens\\_8: "))
    assert "2.0" not in row
    assert "**OTHER\\_ANSWERS**" in text


def test_a_change_that_may_not_change_answers_keeps_its_verdict() -> None:
    """bfloat16 rounds on purpose: its differences are shown beside its speed."""
    assert verdicts(generation_record(tried("bfloat16", 1.5, equality=answers(2)))) == {
        "bfloat16": "FASTER"
    }


def test_coverage_stands_beside_tokens_and_time() -> None:
    table, lengths, _ = coverage_lines(outcomes())
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]
    assert [(row[0], row[1], row[2], row[3], row[6]) for row in rows] == [
        ("32", "fixed length", "100 %", "32", ""),
        ("16", "fixed length", "100 %", "16", "8 of 8"),
        ("8", "fixed length", "90 %", "8", "8 of 8"),
        ("32", "natural", "100 %", "6", ""),
        ("16", "natural", "100 %", "6", "0 of 8"),
        ("8", "natural", "90 %", "6", "3 of 8"),
    ]
    assert [float(row[5].split()[0].removesuffix("x")) for row in rows] == pytest.approx(
        [1, 2, 3.9, 1, 1.05, 1.3], rel=0.01
    )
    assert "92 % have 10 or fewer" in lengths


def test_passes_of_usual_answers_say_so() -> None:
    assert "answers of 10 or fewer" not in "\n".join(coverage_lines(outcomes()))
    short = limit(16, 1.0, 0)
    short = replace(short, facts={**short.facts, "asks_usual_answers_only": True})
    assert "answers of 10 or fewer" in "\n".join(
        coverage_lines(judge_all(generation_record(short)))
    )


def test_no_limit_no_coverage() -> None:
    assert coverage_lines(judge_all(optimize_record(compare("apply_prompt", 2.0)))) == []


def test_a_plan_is_predicted_by_the_product_of_its_parts() -> None:
    first, second, third = find_plans(outcomes())
    assert first.predicted is not None
    assert first.predicted.center == pytest.approx(1.2 * 1.05 * 0.9, rel=0.01)
    assert second.predicted is not None
    assert second.predicted.center == pytest.approx(1.4 * 1.3 * 0.9, rel=0.01)
    assert third.measured is not None
    assert third.measured.center == pytest.approx(1.7, rel=0.01)
    assert third.difference is not None
    assert third.difference.center == pytest.approx(1.7 / (1.8 * 1.05 * 0.9) - 1, abs=0.01)


@pytest.mark.parametrize(
    ("measured", "words"),
    [
        (1.2, "they overlap"),
        (2.0, "they help each other"),
        (1.68, "they do not hinder each other"),
    ],
)
def test_what_prediction_and_measurement_differ_by_is_told(measured: float, words: str) -> None:
    record = generation_record(
        tried("batch_double", 1.4),
        limit(16, 1.2, 0),
        plan("b", measured, "batch_double, tokens_16"),
    )
    table = plan_lines(judge_all(record))[0]
    assert words in table.splitlines()[-1]


def test_a_part_without_a_measurement_leaves_no_prediction() -> None:
    record = generation_record(
        tried("batch_double", 1.4), plan("a", 1.5, "batch_double, tokens_16")
    )
    (found,) = find_plans(judge_all(record))
    assert (found.predicted, found.difference, found.missing) == (None, None, ("tokens_16",))
    assert "not measured alone on the plan's questions: tokens\\_16" in "\n".join(
        plan_lines(judge_all(record))
    )


@pytest.mark.parametrize("elsewhere", [True, False])
def test_a_part_on_other_questions_leaves_no_prediction(elsewhere: bool) -> None:
    part = tried("workers_4", 1.1, facts=ELSEWHERE if elsewhere else {})
    if not elsewhere:
        assert part.before is not None
        part = replace(part, before=replace(part.before, samples_per_step=BATCH + 1))
    record = generation_record(
        tried("batch_double", 1.4), part, plan("b", 1.5, "batch_double, workers_4")
    )
    (found,) = find_plans(judge_all(record))
    assert (found.predicted, found.missing) == (None, ("workers_4",))
    assert found.measured is not None


def test_what_cannot_act_here_is_named_and_not_predicted() -> None:
    told = "\n".join(plan_lines(outcomes()))
    assert "left out here: pin\\_memory (not applicable on the CPU" in told


def test_a_plan_that_was_not_timed_says_why() -> None:
    record = generation_record(tried("batch_double", 1.4), plan("c", None, "batch_double"))
    (found,) = find_plans(judge_all(record))
    assert found.measured is None
    assert found.sentence == ""
    assert "not every side" in "\n".join(plan_lines(judge_all(record)))


def test_priority_is_by_what_the_job_as_it_is_saves() -> None:
    keys = [each.comparison.key for each, _ in rank(outcomes())]
    assert keys == [
        "processes_2",
        "batch_double",
        "tokens_8",
        "batch_half_more",
        "tokens_16",
        "workers_4",
    ]
    first = priority_lines(outcomes())[0].splitlines()[2]
    assert re.match(r"\| 1 \| processes\\_2: .* \| 4 \|$", first), "the guide's fourth"


def test_a_gain_over_single_samples_is_not_the_jobs() -> None:
    record = generation_record(single(16, 6.0), tried("batch_double", 1.4))
    said = answer(record, judge_all(record))
    assert "largest proven gain of a single change is batch_double: 1.4" in said


def test_the_total_is_batches_times_seconds_per_batch() -> None:
    # Half a second for 32 samples in one batch.
    measured = side("before", [0.5] * 12)
    assert eta_seconds(measured, BATCH, 1, 320) == Interval(5.0, 5.0, 5.0)
    assert eta_seconds(measured, BATCH, 1, 321).center == pytest.approx(5.5), "one batch more"
    # Two processes that answer 32 samples in half a second answer 16 each.
    assert eta_seconds(measured, 16, 2, 320).center == pytest.approx(5.0)
    assert eta_seconds(measured, 8, 2, 320).center == pytest.approx(5.0)


def test_before_and_after_are_told_for_the_users_number() -> None:
    record = whole_generation(samples=3200)
    table = eta_lines(record, judge_all(record))[1]
    rows = {
        cells[0].replace("\\", ""): cells[1:]
        for line in table.splitlines()[2:]
        if (cells := [cell.strip() for cell in line.split("|")[1:-1]])
    }
    assert list(rows) == ["as it was", "processes_2", "Plan A", "Plan B", "Plan C"]
    assert [rows["as it was"][at] for at in (0, 1, 2)] == ["32", "1", "100"]
    seconds = {name: float(cells[-2].split()[0]) for name, cells in rows.items()}
    assert float(rows["Plan B"][-1].split()[0]) == pytest.approx(seconds["as it was"], rel=0.05)
    base = find_base(judge_all(record))
    assert base is not None
    assert base.before is not None
    expected = 100 * derive.step_seconds(base.before).center
    assert seconds["as it was"] == pytest.approx(expected, rel=0.01)
    assert seconds["Plan B"] == pytest.approx(expected / 1.6, rel=0.05)
    assert rows["Plan B"][0] == "64"
    assert rows["Plan C"][1] == "2"


def test_without_a_number_the_guides_is_the_example() -> None:
    record = whole_generation()
    told = eta_lines(record, judge_all(record))[0]
    assert str(EXAMPLE_BATCHES * EXAMPLE_BATCH) in told
    assert "`--samples` takes your number" in told
    assert "`--samples`" not in eta_lines(whole_generation(5), judge_all(record))[0]


def test_other_workloads_have_no_such_sections() -> None:
    text = render_optimize(optimize_record(compare("apply_prompt", 2.0)))
    for title in ("Coverage", "Plans", "Priority", "How long it takes"):
        assert f"## {title}" not in text


def test_the_report_has_every_section_and_survives_the_disk() -> None:
    record = whole_generation(samples=1000)
    text = render_optimize(record)
    titles = re.findall(r"^## (.+)$", text, flags=re.MULTILINE)
    assert titles[1:6] == ["Before and after", "Coverage", "Plans", "Priority", "How long it takes"]
    assert "### Full evaluation pass" in text
    again = codec.from_dict(OptimizeRecord, json.loads(codec.dumps(record)), "record")
    assert render_optimize(again) == text
    said = answer(record, judge_all(record))
    assert re.search(r"Plan B: 1\.\d+ .*x, predicted 1\.\d+ .*x, 3 of 8 answers change", said)


def test_one_sides_experiments_start_elsewhere() -> None:
    only = generation_record(tried("kv_cache", 1.5, facts=ELSEWHERE))
    assert rank(judge_all(only)) == []
    assert eta_lines(only, judge_all(only)) == []


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(45.0, "45.0 [44.0, 46.0] s"), (600.0, "10.00 [9.78, 10.22] min"), (12060.0, "h")],
)
def test_durations_are_told_in_their_unit(seconds: float, words: str) -> None:
    found = duration(Interval(seconds, seconds * 44 / 45, seconds * 46 / 45))
    assert words in found
