"""Do the scripts for the simulated device have twins, and is their truth measured on it?"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

import pytest

from bench.planted_async.clock import BLOCKS
from bench.planted_async.truth import CASES, HOME, Timed
from diagnose.analyze.accuracy import Judged
from diagnose.measure.twins.cases import find_lines, fixed_script
from diagnose.records.accuracy import AccuracyRecord
from diagnose.render import store
from tests.support.cli import launch

TOOL = "tests/support/fake_script_tool.py"


@pytest.mark.parametrize("timed", CASES, ids=lambda timed: timed.name)
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


def test_the_command_judges_a_script_by_the_clock_of_the_device(
    fakegpu_env: dict[str, str], tmp_path: Path
) -> None:
    words = [sys.executable, "-m", "diagnose", "accuracy", "--simulated", "--tool", TOOL]
    words += ["--only", "launch_rows on h100", "--reports", str(tmp_path), "--label", "made-up"]
    refused = launch(words, {})
    assert refused.code == 2
    assert "there is no simulated device: build it" in refused.err
    (timed,) = (each for each in CASES if each.name == "launch_rows on h100")
    (line,) = find_lines(timed.case, timed.case.culprits[0])
    said = {"launch_rows": {"cause": "launch", "line": line, "gain_ms": 5.0}}
    done = launch(words, {**fakegpu_env, "FAKE_TOOL": json.dumps(said)})
    record = store.load(tmp_path / "made-up" / AccuracyRecord.FILE_NAME, AccuracyRecord)
    assert record.complete, done.err
    assert record.header.source == "fake device", "never mixed with hardware"
    (judged,) = map(Judged, record.cases)
    assert (judged.result.name, judged.said_cause) == (timed.name, "launch")
    assert judged.line_right
    assert judged.result.twins is not None
    slow, fixed = judged.result.twins.slow_seconds, judged.result.twins.fixed_seconds
    assert len(slow) == len(fixed) == BLOCKS
    # Its kernels alone take longer than both twins' hosts together on a busy machine.
    assert statistics.median(slow) > 1.2 * statistics.median(fixed)
