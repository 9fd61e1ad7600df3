"""Does a waterfall add up, and does what is not proven look so?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from diagnose.analyze.optimize.ladder import climb
from diagnose.records.stats import Interval
from diagnose.render.optimize.figures import draw_ladder, figures
from diagnose.render.waterfall import UNEXPLAINED, Step, waterfall
from tests.support.records.experiments import optimize_record
from tests.support.records.series import rung, series_record, whole_series
from tests.support.rendered import told


def draw(steps: Sequence[Step], end: float) -> Axes:
    (axes,) = waterfall(Step("start", 100.0), steps, Step("end", end)).axes
    return axes


def bars(axes: Axes) -> list[Rectangle]:
    return [each for each in axes.patches if isinstance(each, Rectangle)]


def names(axes: Axes) -> list[str]:
    return [label.get_text() for label in axes.get_yticklabels()]


def test_each_step_begins_where_the_one_before_ended() -> None:
    axes = draw([Step("a", -30.0), Step("b", 5.0)], 75.0)
    start, *steps, end = bars(axes)
    assert [bar.get_x() for bar in (start, *steps, end)] == [0, 100, 70, 0]
    assert [text.get_text() for text in axes.texts][1:3] == ["-30.00 ms", "+5.000 ms"]
    assert axes.get_xlabel() == "ms per step"


@pytest.mark.parametrize(("end", "rest"), [(70.0, None), (70.3, None), (80.0, 10.0)])
def test_steps_that_do_not_add_up_leave_a_rest(end: float, rest: float | None) -> None:
    axes = draw([Step("a", -30.0)], end)
    assert (UNEXPLAINED in names(axes)) is (rest is not None)
    if rest is not None:
        assert bars(axes)[2].get_width() == pytest.approx(rest)


def test_what_is_not_proven_is_hatched_and_has_its_interval() -> None:
    axes = draw([Step("a", -30.0, certain=False, interval=Interval(-30.0, -60.0, 5.0))], 70.0)
    assert [bool(bar.get_hatch()) for bar in bars(axes)] == [False, True, False]
    (line,) = axes.lines
    assert np.asarray(line.get_xdata()).tolist() == [40.0, 105.0]
    assert axes.get_xlabel() == "ms per step; lines: 95 % intervals; hatched: not proven"


def test_the_ladder_shows_speed_ups_and_hatches_what_is_not_proven() -> None:
    record = series_record(rungs=(rung("no_workers", 1.6), rung("b", 1.7, blocks=4)))
    (axes,) = draw_ladder(climb(record)).axes
    assert names(axes) == ["as it was", "+ no_workers", "+ b"]
    assert [bool(bar.get_hatch()) for bar in bars(axes)] == [False, False, True]
    assert [bar.get_width() for bar in bars(axes)] == pytest.approx([1.0, 1.6, 1.7], rel=0.01)
    assert len(axes.lines) == 1, "four blocks are too few for an interval"
    assert axes.get_xlabel().startswith("training epoch: times as fast as it was")


def test_a_record_has_the_figures_that_it_supports() -> None:
    assert list(figures(whole_series())) == ["ladder.svg"]
    assert figures(optimize_record()) == {}
    (part,) = told(whole_series())
    assert part.draw_all() == part.draw_all()
