"""Is the pace of the optimised step told with its interval, and judged only when decided?"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from diagnose.analyze.optimize.pace import NEAR_ENOUGH, pace, pace_lines
from diagnose.records.experiments import OptimizeRecord
from diagnose.records.header import Reading
from diagnose.records.run import StageResult
from tests.support.records.experiments import noisy_blocks, optimize_record, side


def paced(ratio: float, flops: float = 4e9, noise: float = 0.01) -> OptimizeRecord:
    """A backbone of 2 GFLOP in 0.1 s, and a step that reaches `ratio` of its FLOP/s."""
    backbone_seconds = 0.1
    step_seconds = backbone_seconds * (flops / 2e9) / ratio
    times = backbone_seconds / step_seconds
    before, _, after = noisy_blocks(backbone_seconds, times, noise=noise)
    backbone = replace(side("backbone", before), flops_per_step=Reading(2e9))
    optimised = replace(side("optimised", after), flops_per_step=Reading(flops))
    stage = StageResult("pace", "pace", "done", measurements=(optimised, backbone))
    return replace(optimize_record(), pace=stage)


@pytest.mark.parametrize("ratio", [0.5, 0.79, 0.9, 1.1])
def test_the_ratio_is_that_of_the_rates(ratio: float) -> None:
    found = pace(paced(ratio))
    assert found is not None
    assert found.low is not None
    assert found.high is not None
    assert found.low <= found.center <= found.high
    assert math.isclose(found.center, ratio, rel_tol=0.05)


def test_it_is_judged_only_when_the_interval_decides() -> None:
    assert "little is left to gain" in pace_lines(paced(0.95))[0]
    assert "still costs" in pace_lines(paced(0.6))[0]
    assert "not decided" in pace_lines(paced(NEAR_ENOUGH, noise=0.1))[0]


def test_no_pace_has_its_reason() -> None:
    assert "was not held against" in pace_lines(optimize_record())[0]
    failed = StageResult("pace", "pace", "failed", "out of memory")
    assert "out of memory" in pace_lines(replace(optimize_record(), pace=failed))[0]
    record = paced(0.9)
    assert record.pace is not None
    uncounted = tuple(
        replace(each, flops_per_step=Reading(None, "not counted"))
        for each in record.pace.measurements
    )
    blind = replace(record, pace=replace(record.pace, measurements=uncounted))
    assert pace(blind) is None
    assert "could not be counted" in pace_lines(blind)[0]
