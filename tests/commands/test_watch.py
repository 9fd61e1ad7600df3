"""Does a watched job compute exactly what it computes without us, alone and on two ranks?

Jobs of many more kinds: test_frameworks.py.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import ROOT, command, start
from tests.support.script_runs import write_script

WATCHED = ROOT / "tests" / "support" / "watched"
PLAIN = [sys.executable]
WATCH = [sys.executable, "-m", "diagnose", "watch", "--seconds", "2", "--json"]
TWO_RANKS = [*PLAIN, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
# What is looked at: steps are seen, and the verdict names them.
JOBS = {
    "plain": ("plain.py",),
    "ddp": ("ranks.py", "ddp"),
    "fsdp2": ("ranks.py", "fsdp2"),
}
IMPORTABLE = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
RANKS = ("ddp", "fsdp2")


def run_job(job: str, directory: Path, watched: Path | None) -> None:
    """Everything that it writes, in a folder that has the same name each time."""
    directory.mkdir()
    script, *words = JOBS[job]
    watch = [] if watched is None else [*WATCH[1:], str(watched)]
    launcher = [*TWO_RANKS] if job in RANKS else PLAIN
    done = start(
        [*launcher, *watch, str(WATCHED / script), str(directory), *words],
        IMPORTABLE,
    )
    assert done.returncode == 0, done.stderr
    assert (watched is None) == ("diagnose: " not in done.stderr), done.stderr


def files_of(directory: Path) -> Mapping[str, str]:
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize("job", JOBS)
def test_a_watched_job_is_bit_identical(tmp_path: Path, job: str) -> None:
    found = tmp_path / "found.json"
    left = tmp_path / "left"
    run_job(job, left, None)
    expected = files_of(left)
    left.rename(tmp_path / "plain")
    run_job(job, left, found)
    ranks = ("0", "1") if job in RANKS else ("0",)
    for rank in ranks:
        ours, theirs = (
            json.loads((tmp_path / name / f"traces-{rank}.json").read_text())
            for name in ("left", "plain")
        )
        assert len(ours["losses"]) >= 200
        assert ours == theirs
    assert files_of(left) == expected
    diagnosis: dict[str, Any] = json.loads(found.read_text())
    assert diagnosis["steps"] >= 20
    assert diagnosis["step_ms"]["median"] > 0
    assert not any("this tool failed" in each for each in diagnosis["notes"])
    assert any("only watched" in each for each in diagnosis["notes"])


def watch(script: Path, *words: object) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    found = script.with_suffix(".json")
    done = start(command("watch", "--json", found, *words, script), {"OMP_NUM_THREADS": "1"})
    return done, json.loads(found.read_text()) if found.exists() else {}


HEAD = """
import sys, time
import torch
torch.set_num_threads(1)
model = torch.nn.Linear(16, 16)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
def update():
    optimizer.zero_grad()
    model(torch.randn(8, 16)).sum().backward()
    optimizer.step()
    time.sleep(0.002)
"""


def test_a_range_of_steps_is_told_while_the_job_goes_on(tmp_path: Path) -> None:
    code = """
    for step in range(400):
        if step == 399:
            print("the end", file=sys.stderr, flush=True)
        update()
    sys.exit(7)
    """
    script = write_script(tmp_path, HEAD + textwrap.dedent(code))
    done, diagnosis = watch(script, "--from-step", 100, "--steps", 60)
    assert done.returncode == 7  # the job's own
    verdict, end = done.stderr.index(" steps in "), done.stderr.index("the end")
    assert verdict < end
    assert 130 <= diagnosis["steps"] < 200
    assert not any(each["verified"] for each in diagnosis["findings"])


@pytest.mark.parametrize(
    ("code", "words", "told"),
    [
        ("update()", ("--from-step", 50), "--from-step 50 was not reached"),
        ("print(model.weight.sum())", (), "before the first step"),
        ("raise ValueError('mine')", (), "before the first step"),
    ],
    ids=["ends before", "never steps", "fails"],
)
def test_a_job_that_cannot_be_watched_ends_as_it_would(
    tmp_path: Path, code: str, words: tuple[object, ...], told: str
) -> None:
    done, diagnosis = watch(write_script(tmp_path, f"{HEAD}\n{code}\n"), *words)
    assert done.returncode == (1 if "mine" in code else 0)
    assert ("ValueError: mine" in done.stderr) == ("mine" in code)
    assert str(ROOT / "diagnose") not in done.stderr
    assert told in diagnosis["cannot_tell"][0]["reason"]


def test_a_fault_of_ours_and_a_profiler_of_the_jobs(tmp_path: Path) -> None:
    """What watches fails in many ways here; the job runs under its own profiler, and goes on."""
    code = """
    from diagnose.measure.script.watch import origins, work
    def broken(*args, **kwargs):
        raise RuntimeError("broken on purpose")
    origins.Feeds._feed = work.StepMap.record = broken
    rows = torch.utils.data.DataLoader(range(40), batch_size=4)
    with torch.profiler.profile(schedule=torch.profiler.schedule(wait=5, warmup=1, active=40)) as p:
        for step in range(120):
            for row in rows:
                break
            update()
            p.step()
    assert len(p.key_averages()) > 3
    print("trained")
    """
    script = write_script(tmp_path, HEAD + textwrap.dedent(code))
    done, diagnosis = watch(script, "--seconds", 1)
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
    assert "Traceback" not in done.stderr
    told = [each for each in diagnosis["notes"] if "this tool failed" in each]
    assert told
    assert "broken on purpose" in told[0]


def test_any_loop_of_ones_own(tmp_path: Path) -> None:
    code = """
    import diagnose
    for _ in range(5):
        update()
    with diagnose.watch(seconds=1, json=sys.argv[1]) as watched:
        for _ in range(200):
            update()
    assert watched.diagnosis.steps >= 30, watched.diagnosis
    assert diagnose.load(sys.argv[1]).steps == watched.diagnosis.steps
    try:
        with diagnose.watch():
            raise ValueError("mine")
    except ValueError:
        print("theirs")
    """
    script = write_script(tmp_path, HEAD + textwrap.dedent(code))
    done = start([sys.executable, str(script), str(tmp_path / "found.json")], IMPORTABLE)
    assert (done.returncode, done.stdout) == (0, "theirs\n"), done.stderr
    assert done.stderr.count("diagnose: train.py · ") == 1
