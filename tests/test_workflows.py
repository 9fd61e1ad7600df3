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
WORKFLOWS = ("check.yml", "diagnose-gpu.yml")
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
    return re.findall(r"^\s*make ([\w-]+)", "\n".join(scripts), flags=re.MULTILINE)


def find_makefile_targets() -> set[str]:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^([a-z][\w-]*):(?!=)", text, flags=re.MULTILINE))


@pytest.mark.parametrize(
    ("name", "targets"),
    [("check.yml", ["test", "check"]), ("diagnose-gpu.yml", ["diagnose", "check"])],
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


def test_gpu_machine_measures_one_at_a_time_and_never_for_strangers() -> None:
    workflow = read_workflow("diagnose-gpu.yml")
    assert set(workflow["on"]) == {"workflow_dispatch", "schedule"}
    assert workflow["concurrency"]["cancel-in-progress"] == "false"
    assert "${{" not in workflow["concurrency"]["group"]
    assert workflow["permissions"] == {"contents": "write"}
    assert workflow["jobs"]["diagnose"]["runs-on"] == ["self-hosted", "gpu"]


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


def run_commit_step(directory: Path) -> str:
    [script] = [s for s in find_scripts(read_workflow("diagnose-gpu.yml")) if "git commit" in s]
    return run(directory, "bash", "-e", "-c", script)


def test_changed_reports_are_committed_on_top_of_the_branch(clone: Path, tmp_path: Path) -> None:
    (clone / "reports" / "README.md").write_text("one\n")
    run_commit_step(clone)
    log = git(tmp_path / "origin.git", "log", "--format=%an %s", "main").splitlines()
    assert log[0].startswith("github-actions[bot] Reports of ")
    assert log[1:] == ["t meanwhile", "t first"]


def test_unchanged_reports_are_not_committed(clone: Path, tmp_path: Path) -> None:
    assert "did not change" in run_commit_step(clone)
    assert git(tmp_path / "origin.git", "log", "--format=%s", "main") == "meanwhile\nfirst"
