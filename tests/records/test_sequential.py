"""Does the interval hold whenever one looks, and does it end early where the effect is large?"""

from __future__ import annotations

import math
import random

import pytest

from diagnose.records.sequential import Block, decide, log_wealth, passes_gate, ratio_interval
from diagnose.records.stats import Interval

SESSIONS = 200


def draw(dice: random.Random, ratio: float, spikes: float) -> Block:
    """Three windows of one block: noise of 3 %, and now and then a spike on one side only."""
    times = [
        math.exp(dice.gauss(0, 0.03)) * (2.0 if dice.random() < spikes else 1.0) for _ in range(3)
    ]
    return Block(times[0], times[1], times[2] / ratio)


def test_the_bet_is_fair() -> None:
    # Over all sequences of ranks, each with the same chance, the wealth is 1 on average.
    total = sum(
        math.exp(log_wealth(first, 5 - first - last, last))
        * math.comb(5, first)
        * math.comb(5 - first, last)
        for first in range(6)
        for last in range(6 - first)
    )
    assert total / 3**5 == pytest.approx(1.0)
    assert log_wealth(9, 1, 2) == log_wealth(2, 1, 9)


@pytest.mark.parametrize("spikes", [0.0, 0.2])
@pytest.mark.long
def test_equal_sides_are_hardly_ever_told_apart(spikes: float) -> None:
    dice = random.Random(1)
    wrong = missed = 0
    for _ in range(SESSIONS):
        blocks = [draw(dice, 1.0, spikes) for _ in range(30)]
        found = [ratio_interval(blocks[:count]) for count in range(5, 31)]
        wrong += any(decide(each) in ("FASTER", "SLOWER") for each in found)
        missed += any(each.is_above(1.0) or each.is_below(1.0) for each in found)
    # At most 1 % each, however often one looks; three deviations of 200 sessions above that.
    assert wrong <= 6
    assert missed <= 6


@pytest.mark.parametrize(("ratio", "verdict"), [(1.3, "FASTER"), (1 / 1.3, "SLOWER")])
def test_a_large_effect_is_decided_within_a_few_blocks(ratio: float, verdict: str) -> None:
    dice = random.Random(2)
    blocks = [draw(dice, ratio, 0.1) for _ in range(12)]
    first = next(n for n in range(1, 13) if ratio_interval(blocks[:n]).ends is not None)
    assert first == 7  # the fewest that can show anything at 99 %
    interval = ratio_interval(blocks)
    assert interval.low is not None
    assert interval.low <= ratio <= (interval.high or 0.0)
    assert decide(interval) == verdict


def test_one_wild_block_does_not_decide() -> None:
    dice = random.Random(3)
    blocks = [draw(dice, 1.2, 0.0) for _ in range(20)]
    calm = ratio_interval(blocks)
    wild = ratio_interval([*blocks[:-1], Block(1.0, 1.0, 50.0)])
    assert decide(wild) == decide(calm) == "FASTER"


@pytest.mark.parametrize(
    ("low", "high", "verdict", "passes"),
    [
        (1.02, 1.2, "FASTER", True),
        (0.8, 0.97, "SLOWER", False),
        (0.98, 1.02, "SAME", None),
        (0.99, 1.02, "SAME", True),
        (0.9, 1.1, "INCONCLUSIVE", None),
        (0.985, 1.2, "INCONCLUSIVE", True),
    ],
)
def test_the_verdict_and_the_gate(
    low: float, high: float, verdict: str, passes: bool | None
) -> None:
    interval = Interval((low + high) / 2, low, high)
    assert decide(interval) == verdict
    assert passes_gate(interval, slower=0.02) is passes


def test_too_few_blocks_prove_nothing() -> None:
    interval = ratio_interval([Block(2.0, 2.1, 1.0)] * 3)
    assert interval.ends is None
    assert interval.center == pytest.approx(2.05, rel=0.01)
    assert decide(interval) == "INCONCLUSIVE"
