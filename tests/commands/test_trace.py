"""The verb `trace`, from the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from diagnose.records.exit_codes import FINE, USAGE
from tests.support.traces import collective_steps, loading_steps, write, x

ROOT = Path(__file__).parents[2]
REAL = ROOT.parent / "shared" / "gpu-traces"
TIMEOUT_SECONDS = 120


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None  # an import of it fails
from diagnose.__main__ import main
sys.exit(main())
"""


def trace(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, "trace", *map(str, words)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )


def test_answer_json_report_and_perfetto(tmp_path: Path) -> None:
    path = write(tmp_path / "run.json.gz", loading_steps(8))
    reports, copy = tmp_path / "reports", tmp_path / "copy.json"
    words = ("--reports", reports, "--label", "kept", "--perfetto", copy)
    done = trace(path, "--json", "-", *words)
    assert done.returncode == FINE, done.stderr
    told = json.loads(done.stdout)
    assert told["steps"] == 8
    # 8 kernels of 300 µs in 7.3 ms.
    assert told["device_busy_share"] == pytest.approx(2.4 / 7.3)
    assert told["step_busy_share"] == pytest.approx(0.3)
    first = told["findings"][0]
    assert (first["cause"], first["file"], first["verified"]) == ("input", "train.py", False)
    assert first["gain_ms"] == pytest.approx(0.6, rel=0.01)
    assert first["gain_ci"][0] == 0
    assert "num_workers" in first["advice"]
    assert "seen in a trace, not tried" in told["sentence"]
    report = (reports / "kept" / "report.md").read_text()
    assert "![one step of host and device](trace.svg)" in report
    assert (reports / "kept" / "trace.svg").exists()
    events = json.loads(copy.read_text())["traceEvents"]
    assert len([each for each in events if each.get("cat") == "kernel"]) == 8
    assert any(each["name"].startswith("input: at most") for each in events)
    assert len([each for each in events if each["name"] == "step, device busy 30%"]) == 8
    assert told["ranks"][0]["device"]["kernels"] == 8
    assert told["ranks"][0]["kernels"][0]["operator"] == "aten::mm"
    checked = subprocess.run(
        [sys.executable, "-m", "diagnose", "check", "--allow-dirty", "--reports", str(reports)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    assert checked.returncode == FINE, checked.stderr


def test_the_rank_that_the_others_wait_for_is_named(tmp_path: Path) -> None:
    for rank in range(8):
        events = collective_steps(300 if rank == 2 else 0, offset=5e4 * rank, steps=20)
        if rank == 2:
            late = (x("python_function", "train.py(40): log", 1e3 * s, 300) for s in range(20))
            events += ({**each, "ts": each["ts"] + 5e4 * rank} for each in late)
        write(tmp_path / f"rank{rank}.json.gz", events)
    done = trace(tmp_path, "--json", "-")
    assert done.returncode == FINE, done.stderr
    told = json.loads(done.stdout)
    first = told["findings"][0]
    assert (first["cause"], first["line"]) == ("straggler", 40)
    # Spread evenly, 300 µs of one rank are 37.5 of each.
    assert first["gain_ms"] == pytest.approx(0.2625, rel=0.01)
    assert first["gain_ci"][1] == pytest.approx(0.3, rel=0.01)
    skew = {each["rank"]: round(each["skew_seconds"] * 1e6) for each in told["ranks"]}
    assert skew == dict.fromkeys(range(8), 0) | {2: 300}


@pytest.mark.parametrize("name", ["missing.json", "text.json"])
def test_bad_input_is_one_sentence(tmp_path: Path, name: str) -> None:
    (tmp_path / "text.json").write_text("no trace")
    done = trace(tmp_path / name)
    assert done.returncode == USAGE
    assert done.stderr.startswith("diagnose: ")
    assert done.stderr.count("\n") == 1


def test_the_trace_itself_is_not_overwritten(tmp_path: Path) -> None:
    path = write(tmp_path / "run.json", loading_steps())
    before = path.read_bytes()
    assert trace("--perfetto", path, path).returncode == USAGE
    assert path.read_bytes() == before


@pytest.mark.skipif(not REAL.is_dir(), reason="the published traces are not here")
def test_real_traces_agree_with_a_peer() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench.trace_agreement", str(REAL)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    assert done.returncode == FINE, done.stdout + done.stderr
    assert done.stdout.count("| yes |") == 11
