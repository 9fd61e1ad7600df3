"""What is proven by a record? Equality against what rounding does, speed, and the lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from diagnose.analyze.prove import find_changes, gate, judge_equality, judge_speed, prove
from diagnose.records.prove import AFTER, AGAIN, BEFORE, NUDGED, EqualRun
from tests.support.records.prove import EPSILON, LOSSES, record, run, runs, suspect, windows


@pytest.mark.parametrize(
    ("after", "verdict", "step"),
    [
        (LOSSES, "EQUAL", None),
        ((2.0, 1.5, 1.25, 1.0 + 3 * EPSILON), "EQUAL WITHIN ROUNDING", None),
        ((2.0, 1.5, 1.26, 1.0), "DIVERGES AT STEP 3", 3),
        ((2.0001, 1.5, 1.25, 1.0), "DIVERGES AT STEP 1", 1),
        ((2.0, 1.5), "DIVERGES AT STEP 3", 3),
        ((2.0, None, 1.25, 1.0), "DIVERGES AT STEP 2", 2),
    ],
)
def test_results_are_compared_step_by_step(
    after: Sequence[float | None], verdict: str, step: int | None
) -> None:
    found = judge_equality(record(runs=runs(after)))
    assert found.text == verdict
    assert found.step == step
    if len(after) == 4 and step is not None:
        assert (found.before, found.after) == (LOSSES[step - 1], after[step - 1])


def test_a_lost_gradient_is_seen_where_the_loss_is_still_the_same() -> None:
    made = runs()
    lost = replace(made[1], values={**made[1].values, "gradient norm": (0.5,) * 4})
    found = judge_equality(record(runs=(made[0], lost, *made[2:])))
    assert (found.text, found.what) == ("DIVERGES AT STEP 1", "gradient norm")


def test_rounding_that_grows_allows_more_later() -> None:
    grown = [a + EPSILON * 10.0**n for n, a in enumerate(LOSSES)]
    late = [*LOSSES[:3], LOSSES[3] + 5e-4]
    made = (run(BEFORE), run(AFTER, late), run(AGAIN), run(NUDGED, grown))
    assert judge_equality(record(runs=made)).text == "EQUAL WITHIN ROUNDING"
    early = [LOSSES[0] + 5e-4, *LOSSES[1:]]
    made = (run(BEFORE), run(AFTER, early), run(AGAIN), run(NUDGED, grown))
    assert judge_equality(record(runs=made)).step == 1


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (
            (
                *runs((2.1, 1.5, 1.25, 1.0))[:2],
                run(AGAIN, (3.0, 1.0, 1.0, 1.0), values={"loss": (3.0,)}),
                run(NUDGED),
            ),
            "two runs",
        ),
        ((run(BEFORE), run(AFTER, (), failed="x.py ended with ValueError")), "after, x.py ended"),
        (runs(samples=32.0), "over the first 32 samples the mean loss is 1.4375 before"),
        ((), "not every run took place"),
    ],
)
def test_what_cannot_be_told_says_why(made: tuple[EqualRun, ...], why: str) -> None:
    found = judge_equality(record(runs=made))
    assert found.verdict == "CANNOT TELL"
    assert why in found.reason


def test_another_precision_is_told_and_has_its_own_scale() -> None:
    coarse = 2.0**-7
    after = run(
        AFTER, [each * (1 + coarse) for each in LOSSES], epsilon=coarse, precision="bfloat16"
    )
    found = judge_equality(record(runs=(runs()[0], after, *runs()[2:])))
    assert found.verdict == "EQUAL WITHIN ROUNDING"
    assert found.reason == "the model computes in bfloat16 instead of float32"


def test_the_speed_is_time_before_by_time_after() -> None:
    found = judge_speed(record())
    assert found.verdict == "FASTER"
    assert found.ratio == pytest.approx(2.0, rel=0.01)
    assert found.before_ms == pytest.approx(100, rel=0.01)
    assert found.after_ms == pytest.approx(50, rel=0.01)
    assert found.control == pytest.approx(1.0, rel=0.01)
    assert judge_speed(record(windows=windows(0.1, 0.1, 30))).verdict == "SAME"
    assert judge_speed(record(windows=windows(0.1, 0.2))).verdict == "SLOWER"
    nothing = judge_speed(record(windows=(), missing="HEAD ended with ValueError"))
    assert (nothing.verdict, nothing.reason) == ("INCONCLUSIVE", "HEAD ended with ValueError")


def test_a_larger_batch_is_compared_by_the_sample() -> None:
    found = judge_speed(record(runs=runs(samples=32.0), windows=windows(0.1, 0.2)))
    assert found.per == "sample"
    assert found.ratio == pytest.approx(2.0, rel=0.01)


def test_lines_of_both_sides_are_matched_through_the_edit() -> None:
    first, *rest = find_changes(record())
    assert (first.file, first.line, first.side, first.edited) == ("train.py", 7, BEFORE, True)
    assert first.edit == (5, 8)
    assert first.before_ms == pytest.approx(80, rel=0.01)  # with its backward pass
    assert first.after_ms == pytest.approx(30, rel=0.01)
    # Line 9 after is line 12 before, and has not changed.
    assert rest == []


def test_what_got_slower_is_named_where_it_is_now() -> None:
    slow = replace(record().after, suspects=(suspect(5, 0.18), suspect(9, 0.02)))
    first = find_changes(record(after=slow, windows=windows(0.1, 0.2)))[0]
    assert (first.line, first.side) == (5, AFTER)


@pytest.mark.parametrize(
    ("changes", "slower", "diverges", "passed"),
    [
        ({}, 0.02, True, True),
        ({"windows": windows(0.1, 0.2)}, 0.02, False, False),
        ({"windows": windows(0.1, 0.1, 3)}, 0.02, False, None),
        ({"runs": runs((9.0, 1.5, 1.25, 1.0))}, None, True, False),
        ({"runs": ()}, 0.02, True, None),
        ({"runs": (), "windows": windows(0.1, 0.2)}, 0.02, True, False),
    ],
)
def test_only_what_is_proven_passes_a_gate(
    changes: dict[str, object], slower: float | None, diverges: bool, passed: bool | None
) -> None:
    assert gate(record(**changes), slower, diverges=diverges) is passed


def test_the_sentence_names_verdicts_ratio_and_line() -> None:
    assert prove(record()).sentence == (
        "FASTER: HEAD runs at 2.000x [1.996, 2.004] the speed of main, mostly at train.py:7; "
        "results: EQUAL."
    )


def test_lines_that_explain_the_verdict_come_first() -> None:
    """A line that saves much is not why a whole step got slower."""
    slower = replace(
        record().after, suspects=(suspect(5, 0.03), suspect(9, 0.04), suspect(30, 0.04))
    )
    proof = prove(record(after=slower, windows=windows(0.1, 0.11)))
    assert [each.saved_ms > 0 for each in proof.lines] == [False, False, True]
    assert "SLOWER" in proof.sentence
    assert f"train.py:{proof.lines[0].line}" in proof.sentence
    assert proof.speed.samples_per_second == pytest.approx((8 / 0.1001, 8 / 0.1101), rel=1e-3)
