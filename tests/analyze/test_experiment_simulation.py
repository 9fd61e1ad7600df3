"""How often is the verdict wrong? The whole rule on simulated machines whose truth is known."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from diagnose.analyze.optimize.experiment import judge
from diagnose.measure.optimize.experiment import MOST_BLOCKS, decided_rule
from diagnose.records.sequential import fewest_blocks
from tests.support.records.experiments import slots_of
from tests.support.records.parts import machine

pytestmark = pytest.mark.long

Series = NDArray[np.floating[Any]]

DISTURBANCES = ("none", "drift", "neighbour", "clock step", "spikes")
SESSIONS = 1000
STEPS_PER_SLOT = 20
STEP_NOISE = 0.02


@dataclass(frozen=True)
class Session:
    verdict: str
    covered: bool
    blocks: int


def simulate_noise(disturbance: str, slots: int, dice: np.random.Generator) -> Series:
    """Logarithms of the slot times of a step that truly takes one second."""
    base: Series = np.zeros(slots)
    steps: Series = dice.normal(0, STEP_NOISE, (slots, STEPS_PER_SLOT))
    if disturbance == "drift":
        base = np.linspace(0, 0.05, slots) * dice.choice([-1, 1])
    elif disturbance == "neighbour":
        memory, deviation = 0.95, 0.03
        pushes = dice.normal(0, deviation * math.sqrt(1 - memory**2), slots)
        level = dice.normal(0, deviation)
        for index, push in enumerate(pushes):
            level = memory * level + push
            base[index] = level
    elif disturbance == "clock step":
        base[dice.integers(6, slots // 2) :] = 0.08
    elif disturbance == "spikes":
        steps = steps + (dice.random(steps.shape) < 0.08) * dice.exponential(0.3, steps.shape)
    slots_noise: Series = base + np.median(steps, axis=1)
    return slots_noise


def run_session(disturbance: str, truth: float, dice: np.random.Generator) -> Session:
    """Blocks in random order, added until there is a verdict, judged as a record is."""
    noise = simulate_noise(disturbance, 3 * MOST_BLOCKS, dice).reshape(MOST_BLOCKS, 3)
    times = np.exp(dice.permuted(noise, axis=1)) / np.array([1.0, 1.0, truth])
    before, control, after = (times[:, index].tolist() for index in range(3))
    still_missing = decided_rule()
    blocks = fewest_blocks()
    while any(still_missing([side[:blocks] for side in (before, control, after)])):
        blocks += 1
    outcome = judge(slots_of(before[:blocks], control[:blocks], after[:blocks]), machine(0))
    ends = outcome.timed.speedup.ends if outcome.timed else None
    covered = ends is None or ends[0] <= truth <= ends[1]
    return Session(outcome.verdict, covered, blocks)


@cache
def sessions(disturbance: str, truth: float) -> tuple[Session, ...]:
    dice = np.random.default_rng([DISTURBANCES.index(disturbance), round(100 * truth)])
    return tuple(run_session(disturbance, truth, dice) for _ in range(SESSIONS))


def share(disturbance: str, truth: float, *verdicts: str) -> float:
    counts = Counter(each.verdict for each in sessions(disturbance, truth))
    return sum(counts[verdict] for verdict in verdicts) / SESSIONS


@pytest.mark.parametrize("disturbance", DISTURBANCES)
def test_equal_sides_are_not_told_apart(disturbance: str) -> None:
    assert share(disturbance, 1.0, "FASTER", "SLOWER") < 0.01


@pytest.mark.parametrize("disturbance", DISTURBANCES)
def test_five_percent_are_found(disturbance: str) -> None:
    assert share(disturbance, 1.05, "FASTER") >= 0.95
    assert share(disturbance, 1.05, "SLOWER", "SAME") == 0


@pytest.mark.parametrize("truth", [1.0, 1.05])
@pytest.mark.parametrize("disturbance", DISTURBANCES)
def test_the_interval_covers_the_truth_whenever_one_stops(disturbance: str, truth: float) -> None:
    missed = sum(not each.covered for each in sessions(disturbance, truth))
    # At most 1 % at all blocks together, and three deviations of it.
    assert missed / SESSIONS <= 0.01 + 3 * math.sqrt(0.01 * 0.99 / SESSIONS)


def test_a_quiet_machine_needs_few_blocks_and_reaches_same() -> None:
    assert share("none", 1.0, "SAME") > 0.95
    assert np.median([each.blocks for each in sessions("none", 1.0)]) <= 2 * fewest_blocks()
    assert np.median([each.blocks for each in sessions("none", 1.05)]) <= 2 * fewest_blocks()
