"""Do the scripts for the simulated device have twins, and is their truth measured on it?"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bench.planted_async.run import measure
from bench.planted_async.truth import CASES, HOME, Timed
from diagnose.measure.twins.cases import find_lines, fixed_script

STEPS = 12


@pytest.mark.parametrize("timed", CASES, ids=lambda timed: timed.case.name)
def test_a_case_has_its_line_and_a_repair_that_fits(timed: Timed, tmp_path: Path) -> None:
    for culprit in timed.case.culprits:
        assert find_lines(timed.case, culprit)
    fixed = fixed_script(timed.case, tmp_path).read_text(encoding="utf-8")
    assert fixed != timed.case.slow.read_text(encoding="utf-8")
    compile(fixed, timed.case.name, "exec")
    assert "# culprit" not in fixed


def test_no_case_is_forgotten() -> None:
    folders = {each.parent.name for each in HOME.glob("*/slow.py")}
    assert folders == {timed.case.name for timed in CASES}


def test_the_truth_is_that_of_the_device(fakegpu_env: dict[str, str]) -> None:
    (timed,) = (each for each in CASES if each.case.name == "launch_rows")
    truth = measure(timed, {**os.environ, **fakegpu_env}, STEPS)
    assert truth.slow.printed == truth.fixed.printed, "the same losses"
    assert truth.slow.kernels > 10 * truth.fixed.kernels
    # A kernel takes as long as it takes, however busy the host is.
    assert truth.slow.seconds * truth.slow.busy > 5 * truth.fixed.seconds * truth.fixed.busy / 2
    assert 0 < truth.gain_share < 1
