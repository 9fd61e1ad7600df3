"""Do the workflows call what exists, and only what we trust?"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

ROOT = Path(__file__).parents[1]
MEASURING = ("diagnose-cpu.yml", "diagnose-gpu.yml")
WORKFLOWS = ("check.yml", *MEASURING)
MEASURED = ("diagnose", "optimize", "bandwidth", "scaling")
# What leaves no report: their files are kept as an artifact.
TIMED: dict[str, tuple[str, ...]] = {"diagnose-cpu.yml": (), "diagnose-gpu.yml": ("bench",)}
SECONDS = 60  # for any of the small commands below
TRUSTED_ACTIONS = {"actions/checkout", "actions/setup-python", "actions/upload-artifact"}


def read_workflow(name: str) -> dict[str, Any]:
    # The base loader, because YAML 1.1 reads the key `on` as true and 3.10 as 3.1.
    text = (ROOT / ".github" / "workflows" / name).read_text(encoding="utf-8")
    workflow: dict[str, Any] = yaml.load(text, Loader=yaml.BaseLoader)
    return workflow


def find_steps(workflow: dict[str, Any]) -> list[dict[str, Any]]:
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


def find_scripts(workflow: dict[str, Any]) -> list[str]:
    return [step["run"] for step in find_steps(workflow) if "run" in step]


def find_targets(scripts: list[str]) -> list[str]:
    return re.findall(r"(?:^\s*|\|\| )make ([\w-]+)", "\n".join(scripts), flags=re.MULTILINE)


def find_makefile_targets() -> set[str]:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^([a-z][\w-]*):(?!=)", text, flags=re.MULTILINE))


@pytest.mark.parametrize(
    ("name", "targets"),
    [
        ("check.yml", ["test", "check"]),
        *((name, [*MEASURED, *TIMED[name], "check"]) for name in MEASURING),
    ],
)
def test_workflow_calls_targets_of_the_makefile(name: str, targets: list[str]) -> None:
    assert find_targets(find_scripts(read_workflow(name))) == targets
    assert set(targets) <= find_makefile_targets()


@pytest.mark.parametrize("name", WORKFLOWS)
def test_only_trusted_actions_are_used(name: str) -> None:
    used = {
        step["uses"].split("@")[0] for step in find_steps(read_workflow(name)) if "uses" in step
    }
    assert used
    assert used <= TRUSTED_ACTIONS


@pytest.mark.parametrize("name", WORKFLOWS)
def test_scripts_are_valid_shell(name: str) -> None:
    for script in find_scripts(read_workflow(name)):
        shell = subprocess.run(
            ["bash", "-n"],
            input=script,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert shell.returncode == 0, shell.stderr


def test_check_runs_on_every_change_with_both_pythons() -> None:
    workflow = read_workflow("check.yml")
    assert set(workflow["on"]) == {"push", "pull_request"}
    assert workflow["permissions"] == {"contents": "read"}
    assert workflow["jobs"]["check"]["strategy"]["matrix"]["python"] == ["3.10", "3.12"]


@pytest.mark.parametrize("name", MEASURING)
def test_a_machine_measures_one_at_a_time_and_never_for_strangers(name: str) -> None:
    workflow = read_workflow(name)
    assert set(workflow["on"]) == {"workflow_dispatch", "schedule"}
    assert workflow["concurrency"]["cancel-in-progress"] == "false"
    assert "${{" not in workflow["concurrency"]["group"]
    assert workflow["permissions"] == {"contents": "write"}
    machine = ["self-hosted", "gpu"] if "gpu" in name else "ubuntu-latest"
    assert workflow["jobs"]["diagnose"]["runs-on"] == machine


# What the last step does to a repository: commits what changed, once, on top of what others
# pushed meanwhile.


# Without the caller's git: inside a hook GIT_DIR names the real repository, and the user's
# own configuration may sign commits or run hooks.
ENVIRONMENT = {name: text for name, text in os.environ.items() if not name.startswith("GIT_")} | {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
}


def run(directory: Path, *command: str) -> str:
    child = subprocess.run(
        command,
        cwd=directory,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    return child.stdout.strip()


def git(directory: Path, *arguments: str) -> str:
    return run(directory, "git", "-c", "user.name=t", "-c", "user.email=t@example.org", *arguments)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    origin, seed, clone = tmp_path / "origin.git", tmp_path / "seed", tmp_path / "clone"
    git(tmp_path, "init", "--quiet", "--bare", "--initial-branch=main", str(origin))
    git(tmp_path, "clone", "--quiet", str(origin), str(seed))
    (seed / "reports").mkdir()
    (seed / "reports" / "README.md").write_text("none\n")
    git(seed, "checkout", "--quiet", "-b", "main")
    git(seed, "add", ".")
    git(seed, "commit", "--quiet", "--message", "first")
    git(seed, "push", "--quiet", "--set-upstream", "origin", "main")
    git(tmp_path, "clone", "--quiet", str(origin), str(clone))
    (seed / "code.py").write_text("x = 1\n")
    git(seed, "add", ".")
    git(seed, "commit", "--quiet", "--message", "meanwhile")
    git(seed, "push", "--quiet")
    return clone


# Stands in for make: leaves a report where the real one would, or fails for one target.
MAKE = """#!/bin/sh
echo "$@" >> "$MAKE_LOG"
[ "$1" = "$FAILING" ] && exit 3
case "$1" in check|bench) exit 0 ;; esac
mkdir -p reports/hosted
echo "# $1" >> reports/hosted/report.md
"""


def run_workflow(name: str, clone: Path, tmp_path: Path, failing: str = "") -> tuple[bool, str]:
    """Every shell line of the job in its order, as a runner takes them: whether it passed."""
    tools, summary = tmp_path / "tools", tmp_path / "summary.md"
    tools.mkdir()
    summary.touch()
    for tool, text in (("make", MAKE), ("nvidia-smi", "#!/bin/sh\necho one\necho two\n")):
        (tools / tool).write_text(text)
        (tools / tool).chmod(0o755)
    environment = ENVIRONMENT | {
        "PATH": f"{tools}:{os.environ['PATH']}",
        "MAKE_LOG": str(tmp_path / "made"),
        "FAILING": failing,
        "GITHUB_STEP_SUMMARY": str(summary),
    }
    outcomes: list[str] = []
    for step in find_steps(read_workflow(name)):
        condition = step.get("if", "")
        if "run" not in step or (condition == "${{ failure() }}"):
            continue
        if "steps.*.outcome" in condition and "failure" not in outcomes:
            continue
        shell = ["bash", "-e", "-c", step["run"]]
        done = subprocess.run(
            shell, cwd=clone, env=environment, capture_output=True, timeout=SECONDS, check=False
        )
        outcomes.append("success" if done.returncode == 0 else "failure")
        if done.returncode and step.get("continue-on-error") != "true":
            return False, summary.read_text()
    return True, summary.read_text()


@pytest.mark.parametrize("name", MEASURING)
def test_a_workflow_measures_all_and_commits_it(name: str, clone: Path, tmp_path: Path) -> None:
    passed, summary = run_workflow(name, clone, tmp_path)
    assert passed
    made = [line.split()[0] for line in (tmp_path / "made").read_text().splitlines()]
    assert made == [*MEASURED, *TIMED[name], "check"]
    assert summary == "".join(f"# {each}\n" for each in MEASURED), "rendered in the job"
    log = git(tmp_path / "origin.git", "log", "--format=%an %s", "main").splitlines()
    assert log[0].startswith("github-actions[bot] Reports of ")
    assert log[1:] == ["t meanwhile", "t first"], "on top of what others pushed meanwhile"
    shown = git(tmp_path / "origin.git", "show", "main:reports/hosted/report.md")
    assert shown == summary.strip()


@pytest.mark.parametrize("failing", MEASURED)
@pytest.mark.parametrize("name", MEASURING)
def test_what_fails_keeps_nothing_else_from_being_committed(
    name: str, failing: str, clone: Path, tmp_path: Path
) -> None:
    assert not run_workflow(name, clone, tmp_path, failing)[0]
    shown = git(tmp_path / "origin.git", "show", "main:reports/hosted/report.md")
    assert shown.split() == [word for each in MEASURED if each != failing for word in ("#", each)]


@pytest.mark.parametrize("name", MEASURING)
def test_times_of_tests_are_kept_beside_the_reports(name: str, clone: Path, tmp_path: Path) -> None:
    hidden = [
        step["with"]
        for step in find_steps(read_workflow(name))
        if step.get("with", {}).get("path", "").startswith(".")
    ]
    kept = [(each["path"], each["include-hidden-files"]) for each in hidden]
    assert kept == [(".benchmarks/", "true")] * len(TIMED[name])
    for failing in TIMED[name]:
        assert not run_workflow(name, clone, tmp_path, failing)[0]
        log = git(tmp_path / "origin.git", "log", "--format=%s", "main")
        assert log.startswith("Reports of "), "what was measured is committed all the same"


@pytest.mark.parametrize("name", MEASURING)
def test_reports_that_do_not_pass_the_check_are_not_committed(
    name: str, clone: Path, tmp_path: Path
) -> None:
    assert not run_workflow(name, clone, tmp_path, failing="check")[0]
    assert git(tmp_path / "origin.git", "log", "--format=%s", "main") == "meanwhile\nfirst"


@pytest.mark.parametrize("name", MEASURING)
def test_unchanged_reports_are_not_committed(name: str, clone: Path, tmp_path: Path) -> None:
    [script] = [s for s in find_scripts(read_workflow(name)) if "git commit" in s]
    assert "did not change" in run(clone, "bash", "-e", "-c", script)
    assert git(tmp_path / "origin.git", "log", "--format=%s", "main") == "meanwhile\nfirst"
