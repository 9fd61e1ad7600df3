"""Are the intervals as honest as they claim?"""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnose.records.stats import (
    hodges_lehmann,
    median_absolute_deviation,
    outliers,
    percentile_bound,
    quartiles,
    relative_iqr,
    wilcoxon_rank,
)

# Tabulated critical ranks of the signed-rank test.
RANKS_95 = {6: 1, 7: 3, 8: 4, 10: 9, 12: 14, 15: 26, 16: 30, 20: 53, 24: 82, 30: 138}
RANKS_99 = {6: 0, 7: 0, 8: 1, 10: 4, 12: 8, 15: 16, 16: 20, 20: 38, 24: 62, 30: 110}

# 1 - 2 P(W < k) of the signed-rank law: ranks are whole, so it is a little over 95 %.
EXACT_COVERAGE = {6: 0.96875, 10: 0.951171875, 20: 0.9515590667724609}

VALUES = st.lists(st.floats(1e-3, 1e3), min_size=6, max_size=25)


@pytest.mark.parametrize(("count", "rank"), RANKS_95.items())
def test_rank_of_the_95_percent_interval(count: int, rank: int) -> None:
    assert wilcoxon_rank(count) == rank


@pytest.mark.parametrize(("count", "rank"), RANKS_99.items())
def test_rank_of_the_99_percent_interval(count: int, rank: int) -> None:
    assert wilcoxon_rank(count, 0.99) == rank


def test_the_approximation_takes_over_without_a_jump() -> None:
    steps = [wilcoxon_rank(count + 1) - wilcoxon_rank(count) for count in range(70, 95)]
    assert min(steps) > 20
    assert max(steps) < 45


@pytest.mark.parametrize("count", range(1, 6))
def test_too_few_values_have_no_interval(count: int) -> None:
    interval = hodges_lehmann([1.0] * count)
    assert interval.low is None
    assert interval.high is None
    assert interval.half_width is None


def test_no_values_have_no_centre() -> None:
    with pytest.raises(ValueError, match="no values"):
        hodges_lehmann([])


@given(VALUES)
def test_the_interval_holds_its_centre_and_stays_inside_the_values(values: list[float]) -> None:
    interval = hodges_lehmann(values)
    assert interval.low is not None
    assert interval.high is not None
    assert min(values) <= interval.low <= interval.center <= interval.high <= max(values)


@given(VALUES, st.randoms())
def test_the_order_of_the_slots_does_not_matter(values: list[float], dice: random.Random) -> None:
    mixed = list(values)
    dice.shuffle(mixed)
    before, after = hodges_lehmann(values), hodges_lehmann(mixed)
    assert after.center == pytest.approx(before.center)
    assert after.low == pytest.approx(before.low)
    assert after.high == pytest.approx(before.high)


@pytest.mark.parametrize("law", ["normal", "heavy tails", "spikes"])
@pytest.mark.parametrize("count", [6, 10, 20])
def test_the_interval_covers_the_truth_as_often_as_it_says(law: str, count: int) -> None:
    dice = random.Random(f"{law} {count}")

    def draw() -> float:
        if law == "normal":
            return dice.gauss(5, 1)
        if law == "heavy tails":
            return 5 + dice.gauss(0, 1) / max(0.05, dice.random())
        return 5 + dice.gauss(0, 0.1) + (dice.choice([-3, 3]) if dice.random() < 0.1 else 0)

    trials = 1500
    covered = 0
    for _ in range(trials):
        interval = hodges_lehmann([draw() for _ in range(count)])
        assert interval.low is not None
        assert interval.high is not None
        covered += interval.low <= 5 <= interval.high
    exact = EXACT_COVERAGE[count]
    # Nine cases are tried, so four deviations of the binomial law: too wide fails as well.
    assert abs(covered / trials - exact) < 4 * math.sqrt(exact * (1 - exact) / trials)


@pytest.mark.parametrize(("share", "needed"), [(0.90, 64), (0.95, 130), (0.99, 662)])
def test_a_percentile_waits_for_enough_steps(share: float, needed: int) -> None:
    steps = [float(value) for value in range(needed)]
    assert percentile_bound(steps[:-1], share) is None
    # One step may lie above: the second largest is the bound.
    assert percentile_bound(steps, share) == needed - 2


def test_a_percentile_bound_holds_for_its_share_of_the_steps() -> None:
    dice = random.Random(3)
    broken = 0
    for _ in range(300):
        bound = percentile_bound([dice.random() for _ in range(200)], 0.90)
        assert bound is not None
        broken += bound < 0.90
    # Promised in 99 % of cases: 3 expected, 12 would be six deviations away.
    assert broken < 12


def test_outliers_are_counted_by_their_distance() -> None:
    quiet = [10.0, 10.1, 10.2, 10.3, 10.4, 10.5, 10.6, 10.7]
    assert (outliers(quiet).mild, outliers(quiet).severe) == (0, 0)
    found = outliers([*quiet, 11.5, 30.0])
    assert (found.mild, found.severe, found.slow_first) == (1, 1, False)
    assert outliers([30.0, *quiet]).slow_first


def test_spread_of_known_values() -> None:
    assert quartiles([1.0, 2.0, 3.0, 4.0, 5.0]) == (2.0, 3.0, 4.0)
    assert quartiles([7.0]) == (7.0, 7.0, 7.0)
    assert relative_iqr([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx(2 / 3)
    assert relative_iqr([0.0, 0.0]) == 0.0
    assert median_absolute_deviation([1.0, 2.0, 9.0]) == 1.0
