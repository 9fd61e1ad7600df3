"""Do the statistics of paired blocks agree with the tables of the textbooks?"""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnose.records.stats import (
    FEWEST_FOR_ROBUST_INTERVAL,
    fewest_for_family,
    hodges_lehmann,
    holm,
    log_ratio_interval,
    minimum_detectable_effect,
    paired_t,
    student_quantile,
    wilcoxon_rank,
)

# Two-sided 95 % and one-sided 80 % points of Student's t, as tabulated.
STUDENT_975 = {1: 12.706, 2: 4.303, 3: 3.182, 5: 2.571, 7: 2.365, 10: 2.228, 29: 2.045}
STUDENT_800 = {1: 1.376, 2: 1.061, 7: 0.896, 30: 0.854}

VALUES = st.lists(st.floats(-1, 1).filter(lambda value: abs(value) > 1e-6), min_size=6, max_size=16)
P_VALUES = st.lists(st.floats(0, 1), min_size=1, max_size=12)


@pytest.mark.parametrize(("freedom", "quantile"), STUDENT_975.items())
def test_student_975(freedom: int, quantile: float) -> None:
    assert student_quantile(0.975, freedom) == pytest.approx(quantile, abs=5e-4)
    assert student_quantile(0.025, freedom) == pytest.approx(-quantile, abs=5e-4)


@pytest.mark.parametrize(("freedom", "quantile"), STUDENT_800.items())
def test_student_800(freedom: int, quantile: float) -> None:
    assert student_quantile(0.80, freedom) == pytest.approx(quantile, abs=5e-4)


@pytest.mark.parametrize(("probability", "freedom"), [(0.0, 3), (1.0, 3), (0.9, 0)])
def test_student_refuses_what_has_no_quantile(probability: float, freedom: int) -> None:
    with pytest.raises(ValueError, match="no quantile"):
        student_quantile(probability, freedom)


def test_paired_t_of_known_values() -> None:
    # mean 3, stdev sqrt(2.5), t = 2.776
    interval = paired_t([1.0, 2.0, 3.0, 4.0, 5.0])
    assert interval.center == 3
    assert interval.half_width == pytest.approx(2.776 * math.sqrt(2.5 / 5), abs=1e-3)
    assert paired_t([1.0]).low is None


def test_holm_of_known_values() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []


@given(P_VALUES)
def test_holm_keeps_the_order_and_never_helps(p_values: list[float]) -> None:
    adjusted = holm(p_values)
    assert all(p <= a <= 1 for p, a in zip(p_values, adjusted, strict=True))
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    assert all(adjusted[a] <= adjusted[b] for a, b in itertools.pairwise(order))


@pytest.mark.parametrize("family", [1, 2, 6, 7, 20, 25, 26, 60])
def test_a_family_needs_just_enough_blocks_to_prove_anything(family: int) -> None:
    blocks = fewest_for_family(family)
    others = [1.0] * (family - 1)
    assert holm([2 / 2**blocks, *others])[0] <= 0.05
    if blocks > 6:
        assert holm([2 / 2 ** (blocks - 1), *others])[0] > 0.05


def test_minimum_detectable_effect_of_known_scatter() -> None:
    values = [-0.01, 0.01] * 4
    scatter = 0.01 * math.sqrt(8 / 7)
    expected = math.expm1((2.3646 + 0.8960) * scatter / math.sqrt(8))
    assert minimum_detectable_effect(values) == pytest.approx(expected, rel=1e-4)
    assert minimum_detectable_effect([0.1]) is None
    assert minimum_detectable_effect([-1e6, 1e6]) is None


def test_log_ratios_take_only_whole_blocks() -> None:
    interval = log_ratio_interval([2.0] * 9, [1.0] * 8)
    for each in (interval.center, interval.low, interval.high):
        assert each == pytest.approx(math.log(2))


@pytest.mark.parametrize(("before", "after"), [([], []), ([1.0], []), ([1.0], [0.0])])
def test_what_has_no_ratio_is_refused(before: list[float], after: list[float]) -> None:
    with pytest.raises(ValueError, match=r"no block|no time"):
        log_ratio_interval(before, after)


def test_what_slows_a_whole_block_cancels() -> None:
    weather = [1.0, 1.5, 0.7, 3.0, 1.1, 0.9, 2.2, 1.3]
    interval = log_ratio_interval([3 * each for each in weather], [2 * each for each in weather])
    assert interval.center == pytest.approx(math.log(1.5))
    assert interval.half_width == pytest.approx(0, abs=1e-12)


def test_one_wild_block_does_not_reach_a_robust_interval() -> None:
    for count in range(FEWEST_FOR_ROBUST_INTERVAL, 40):
        assert wilcoxon_rank(count) > count
    assert wilcoxon_rank(FEWEST_FOR_ROBUST_INTERVAL - 1) <= FEWEST_FOR_ROBUST_INTERVAL - 1
    wild = [0.0] * (FEWEST_FOR_ROBUST_INTERVAL - 1) + [5.0]
    assert hodges_lehmann(wild).half_width == 0
