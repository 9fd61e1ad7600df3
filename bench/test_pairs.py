"""How long do both sides of an optimization take? Groups of before and after; `make bench`.

make bench ARGS="bench/test_pairs.py --workload dgca --benchmark-compare"
"""

from __future__ import annotations

from typing import Any

import pytest

from diagnose.measure.jobs import load
from diagnose.measure.optimize.experiment import lab_of


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every pair of the workload's catalogue, in the widest scope that it has."""
    treatment = load(metafunc.config.getoption("--workload")).treatment
    if treatment is None:
        metafunc.parametrize(("optimization", "side"), [])
        return
    made = treatment()
    pairs = [
        pytest.param(each, side, id=f"{each.key}-{side}")
        for each in (*made.optimizations, *made.parts)
        for side in ("before", "after")
    ]
    metafunc.parametrize(("optimization", "side"), pairs)


def test_pair(optimization: Any, side: str, context: Any, benchmark: Any) -> None:
    lab = lab_of(context)
    if reason := optimization.obstacle(lab):
        pytest.skip(reason)
    trials = getattr(optimization, side).trials
    scope = list(trials)[-1]
    benchmark.group = f"{optimization.key}: {scope}"
    with trials[scope](lab) as trial:
        trial.before_slot()
        benchmark.pedantic(trial.step, rounds=5, warmup_rounds=1)
        trial.after_slot()
    assert benchmark.stats.stats.min > 0
