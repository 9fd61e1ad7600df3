"""Does a job of any framework compute what it computes without us, and is its cause found?

One process imports the packages and forks every run: see tests/support/framework_runs.py.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import ROOT, start
from tests.support.framework_runs import JOBS, PLANTED, SCRIPTS
from tests.support.script_runs import line_of

# The mark at the end of the line that is to be named.
MARKS = {"input": "# slow item", "sync": "# reads one by one"}
EVALUATIONS = {
    "trainer": "# the trainer",
    "lightning": "# validates",  # what the trainer calls
    "accelerate": "# too often",
}
# What a step is, where it is not an optimizer's.
BOUNDARIES = {
    "generation": "generate call",
    "evaluation": "model call",
    "functional_optimizer": "model call",
}
SAID = {
    "accumulation": ("with 4 backward passes before it",),
    "accelerate": ("with 2 backward passes before it",),
    "generation": ("a step is a generate call",),
    "compiled": ("torch.compile took ", "of them once more", "].p == 0.1"),
}
# So many steps are made; every job makes enough for a verdict.
STEPS = {"gan": 80, "module": 80, "hydra": 80, "generation": 60, "accumulation": 80, "scaler": 80}


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("frameworks"), "jobs")


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("frameworks"), "planted")


def run(folder: Path, what: str) -> Path:
    words = [sys.executable, "-m", "tests.support.framework_runs", str(folder), what]
    done = start(words, {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}, seconds=600)
    assert done.returncode == 0, done.stderr
    return folder


def read(path: Path) -> Any:
    return json.loads(path.read_text())


@pytest.mark.parametrize("job", JOBS)
def test_a_watched_job_computes_the_same(jobs: Path, job: str) -> None:
    codes = read(jobs / "codes.json")
    for mode in ("plain", "watch"):
        said = (jobs / job / mode / "stderr").read_text()
        assert codes[f"{job}/{mode}"] == 0, said
    kept = sorted((jobs / job / "plain").glob("kept-*.json"))
    assert len(kept) == (2 if job == "spawned" else 1)
    for each in kept:
        assert read(jobs / job / "watch" / each.name) == read(each)
    found = read(jobs / job / "watch" / "found.json")
    assert found["steps"] >= 30
    assert found["steps"] <= STEPS.get(job, found["steps"])
    assert found["step_ms"]["median"] > 0
    assert found["record"]["boundary"] == BOUNDARIES.get(job, "optimizer step")
    notes = " ".join(found["notes"])
    assert "only watched" in notes
    assert "this tool failed" not in notes
    for said in SAID.get(job, ()):
        assert said in notes
    if job == "notebook":
        assert (found["findings"][0]["file"], found["findings"][0]["line"]) == ("In[2]", 13)


@pytest.mark.alone
@pytest.mark.parametrize(("job", "cause"), PLANTED)
def test_a_planted_cause_is_named_with_the_users_line(planted: Path, job: str, cause: str) -> None:
    found = read(planted / f"{job}-{cause}" / "found.json")
    assert found["stopped"], found
    assert not found["frames"], found["frames"]
    assert not [each for each in found["notes"] if "failed with" in each]
    script = SCRIPTS / JOBS[job][0]
    first = found["findings"][0]
    line = line_of(script, EVALUATIONS[job] if cause == "evaluation" else MARKS[cause])
    assert (first["cause"], Path(first["file"]).name) == (cause, script.name), found["findings"]
    # Of a loop or a block its head is named, and of a statement of several lines the first or last.
    assert abs(first["line"] - line) <= 1
