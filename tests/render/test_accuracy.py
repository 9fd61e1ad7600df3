"""Is the tool judged by the truth alone, and is every verdict told?"""

from __future__ import annotations

from dataclasses import replace

import pytest

from diagnose.analyze.accuracy import Judged, answer, goals
from diagnose.records.accuracy import (
    CaseResult,
    PlantedCulprit,
    Said,
    Twins,
)
from tests.support.records.accuracy import found, healthy, planted, record_of, said, twins
from tests.support.rendered import rendered, told


def met(*cases: CaseResult) -> list[bool | None]:
    return [goal.met for goal in goals([Judged(case) for case in cases])]


def test_right_answers_meet_every_goal() -> None:
    assert met(planted(), healthy()) == [True, True, True, True]
    assert met() == [None, None, None, None]


def wrong_line(line: int, file: str = "slow.py") -> CaseResult:
    return planted(answer=said(found("input", file, line, 0.021)))


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        (wrong_line(28), [True, True, True, None]),
        (wrong_line(52), [True, True, True, None]),
        (wrong_line(27), [True, False, True, None]),
        (wrong_line(30, "other.py"), [True, False, True, None]),
        (planted(twins=twins(0.050, 0.025)), [True, True, False, None]),
        (planted(answer=None, answer_reason="it crashed"), [False, False, False, None]),
        (planted(answer=said()), [False, False, False, None]),
        # No twin, no error; what was said can still be judged.
        (planted(twins=None, twins_reason="it hung"), [True, True, None, None]),
        (healthy(found("input", "slow.py", 3, 0.01)), [False, None, None, False]),
    ],
)
def test_each_goal_can_be_missed(case: CaseResult, expected: list[bool | None]) -> None:
    assert met(case) == expected


def test_a_share_is_held_against_its_goal() -> None:
    wrong = planted(answer=said(found("host", "slow.py", 30, 0.02)))
    assert met(*[planted()] * 19, wrong)[0] is True
    assert met(*[planted()] * 18, wrong)[0] is False
    assert met(*[planted()] * 9, wrong_line(1))[1] is True
    assert met(*[planted()] * 8, wrong_line(1))[1] is False


def test_fewer_causes_must_be_right_where_scripts_are_short() -> None:
    wrong = planted(answer=said(found("host", "slow.py", 30, 0.02)))
    cases = [Judged(each) for each in (*[planted()] * 8, wrong)]
    for is_short, expected in ((True, True), (False, False)):
        assert goals(cases, is_short=is_short)[0].met is expected
    assert goals([*cases, Judged(wrong)], is_short=True)[0].met is False


def test_the_line_of_another_cause_is_not_right() -> None:
    judged = Judged(planted(answer=said(found("host", "slow.py", 30, 0.02))))
    assert (judged.cause_right, judged.line_right) == (False, False)


def test_a_larger_batch_is_compared_per_sample() -> None:
    judged = Judged(planted(twins=twins(0.050, 0.120, work=4)))
    assert judged.real is not None
    assert judged.real.center == pytest.approx(0.020, rel=0.01)


def test_a_slower_minute_is_no_error_of_the_promise() -> None:
    """The machine was half as fast while the tool watched."""
    slower = Said("input", "slow.py", 30, 0.042, 0.42, verified=True)
    judged = Judged(planted(answer=said(slower)))
    assert judged.said_seconds == pytest.approx(0.042)
    assert judged.promised_seconds == pytest.approx(0.021, rel=0.01)
    assert judged.gain_error == pytest.approx(0.05, rel=0.05)
    text = rendered(record_of(planted(answer=said(slower))))
    assert "In milliseconds, which were measured in different minutes, it is 110 %" in text


def test_two_causes_are_promised_together() -> None:
    second = PlantedCulprit("launch", "slow.py", (80,))
    first, other = (
        found("input", "slow.py", 30, 0.015),
        found("launch", "slow.py", 80, 0.006),
    )
    case = planted(culprits=(*planted().culprits, second), answer=said(first, other))
    assert Judged(case).said_seconds == pytest.approx(0.021)
    assert Judged(case).promised == [first, other]
    missed = replace(case, answer=said(first))
    assert Judged(missed).promised == [first]
    assert "second cause missed" in rendered(record_of(missed))


def test_what_costs_nothing_here_is_listed_and_not_counted() -> None:
    # An interval that also allows a gain takes nothing out of the count.
    unsure = planted(twins=Twins((0.05, 0.09) * 4, (0.05,) * 8, 1))
    assert Judged(unsure).not_planted == ""
    free = planted(twins=twins(0.050, 0.051))
    sick = replace(healthy(), twins=twins(0.050, 0.030), twins_reason="")
    assert [Judged(case).not_planted != "" for case in (free, sick)] == [True, True]
    assert met(free, sick) == [None, None, None, None]
    text = rendered(record_of(planted(), free, sick))
    assert "the repaired twin is hardly faster on this machine" in text
    assert "so the script is not healthy here" in text


def test_every_compared_script_has_its_row_in_the_figure() -> None:
    wrong = planted(name="wrong_case", answer=said(found("host", "slow.py", 30, 0.02)))
    (each,) = told(record_of(planted(), wrong, healthy()))
    (svg,) = each.draw_all().values()
    words = svg.decode()
    assert all(name in words for name in ("input_case", "wrong_case", "wrong cause: said host"))
    assert "compute_case" not in words
    assert told(record_of(healthy()))[0].figure_names() == ()


def test_an_unfinished_run_says_so() -> None:
    unfinished = replace(record_of(planted()), complete=False)
    assert answer(unfinished).endswith("The run was not finished.")
    assert answer(record_of()) == "No script was diagnosed."
