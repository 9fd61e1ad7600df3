"""What is proven by a record? Equality against what rounding does, speed, and the lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from diagnose.analyze.prove.equality import judge_equality
from diagnose.analyze.prove.lines import find_changes
from diagnose.analyze.prove.proof import prove
from diagnose.analyze.prove.speed import gate, judge_speed
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
        (
            runs((2.1, 1.4, 1.2, 0.9), samples=32.0),
            "over the first 32 samples the mean loss is 1.4375 before",
        ),
        ((), "not every run took place"),
    ],
)
def test_what_cannot_be_told_says_why(made: tuple[EqualRun, ...], why: str) -> None:
    found = judge_equality(record(runs=made))
    assert found.verdict == "CANNOT TELL"
    assert why in found.reason


def test_another_precision_is_told_and_has_its_own_scale() -> None:
    coarse = 2.0**-7
    before, _, again, _ = runs()
    nudged = run(NUDGED, [each * (1 + coarse / 2) for each in LOSSES])
    for moved, verdict in ((1.5 * coarse, "EQUAL WITHIN ROUNDING"), (4 * coarse, "DIVERGES")):
        losses = [each * (1 + moved) for each in LOSSES]
        after = run(AFTER, losses, epsilon=coarse, precision="bfloat16")
        found = judge_equality(record(runs=(before, after, again, nudged)))
        assert found.verdict == verdict
        assert found.reason == "the model computes in bfloat16 instead of float32"


def test_few_digits_on_both_sides_hide_no_lost_term() -> None:
    facts: dict[str, Any] = {"epsilon": 2.0**-7, "precision": "bfloat16"}
    made = [run(each, **facts) for each in (BEFORE, AFTER, AGAIN, NUDGED)]
    made[1] = run(AFTER, [0.95 * each for each in LOSSES], **facts)
    made[3] = run(NUDGED, [1.002 * each for each in LOSSES], **facts)
    assert judge_equality(record(runs=tuple(made))).text == "DIVERGES AT STEP 1"


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


def test_what_one_pair_of_processes_shows_needs_a_second_one() -> None:
    """A start of a script may be slow by chance, and stays so: no number of blocks tells."""
    alone = record(windows=windows(0.1, 0.07, starts=[0]))
    found = judge_speed(alone)
    assert (found.verdict, gate(alone, 0.02, diverges=False)) == ("INCONCLUSIVE", None)
    assert "second start" in found.reason
    second = windows(0.1, 0.1, starts=[1])
    found = judge_speed(record(windows=(*windows(0.1, 0.07, starts=[0]), *second)))
    assert found.verdict == "INCONCLUSIVE"
    assert found.reason == "two starts of the same scripts gave different ratios, 1.429 and 1.000"
    assert found.ratio_ci is not None
    assert (found.ratio_ci[0], found.ratio_ci[1]) == pytest.approx((1.0, 1 / 0.7), rel=0.01)
    agreed = record(windows=(*windows(0.1, 0.07, starts=[0]), *windows(0.1, 0.08, starts=[1])))
    assert judge_speed(agreed).verdict == "FASTER"


def test_the_side_with_two_windows_does_not_matter() -> None:
    made = windows(0.1, 0.08, 40)
    for twice in (0, 1):
        chosen = tuple(each for each in made if each.block % 2 == twice)
        assert judge_speed(record(windows=chosen)).ratio == pytest.approx(1.25, rel=0.005)


def test_a_larger_batch_is_compared_by_the_sample() -> None:
    other = runs((2.1, 1.4, 1.2, 0.9), samples=32.0)
    found = judge_speed(record(runs=other, windows=windows(0.1, 0.2)))
    assert found.per == "sample"
    assert found.ratio == pytest.approx(2.0, rel=0.01)


def test_a_model_that_is_called_once_instead_of_twice_has_the_same_batch() -> None:
    twice = record(runs=(run(BEFORE, samples=64.0), run(AFTER, samples=32.0)))
    found = judge_speed(twice)
    assert found.per == "step"
    assert found.ratio == pytest.approx(2.0, rel=0.01)
    assert found.samples_per_second == pytest.approx((320, 640), rel=0.01)


def test_a_batch_that_is_half_as_large_again_is_compared_by_the_sample() -> None:
    other = [2.1, 1.4, 1.2, 0.9]
    facts: dict[str, Any] = {"steady": True}
    made = (run(BEFORE, **facts), run(AFTER, other, samples=12.0, **facts), *runs()[2:])
    found = record(runs=made, windows=windows(0.1, 0.12))
    assert judge_speed(found).ratio == pytest.approx(1.25, rel=0.01)
    assert "over the first 32 samples" in judge_equality(found).reason
    fewer = (made[0], run(AFTER, other, samples=7.0, **facts), *made[2:])  # a row was lost
    assert judge_equality(record(runs=fewer)).text == "DIVERGES AT STEP 1"


def test_a_line_that_an_edit_moved_is_the_same_line() -> None:
    before = replace(record().before, suspects=(suspect(7, 0.06), suspect(12, 0.04)))
    call = suspect(12, 0.04).site
    after = replace(
        record().after,
        suspects=(suspect(5, 0.01), replace(suspect(40, 0.04), site=replace(call, line=40))),
    )
    found = find_changes(record(before=before, after=after, windows=windows(0.1, 0.05)))
    assert [each.line for each in found] == [7]


def test_another_way_through_a_function_saves_only_the_difference() -> None:
    before = replace(record().before, suspects=(suspect(60, 0.05), suspect(7, 0.05)))
    ways = (suspect(67, 0.02), suspect(68, 0.01), suspect(5, 0.04))
    after = replace(record().after, suspects=ways)
    first, second = find_changes(record(before=before, after=after, windows=windows(0.1, 0.07)))
    assert (first.line, first.before_ms, first.after_ms) == pytest.approx((60, 50, 30), rel=0.01)
    assert (second.line, second.before_ms, second.after_ms) == pytest.approx((7, 50, 40), rel=0.01)


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


@pytest.mark.parametrize("side", ["before", "after"])
def test_why_no_line_is_known_is_a_note(side: str) -> None:
    facts = replace(getattr(record(), side), lines_reason="train.py was killed")
    found = prove(record(notes=("a note",), **{side: facts})).notes
    assert found == ("a note", "which line takes the time is not known: train.py was killed")
    assert prove(record()).notes == ()
