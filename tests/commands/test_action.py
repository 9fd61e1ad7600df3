"""Does action.yml do what its inputs and outputs say? Its shell lines run as on a runner."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from tests.commands.test_prove import FIXED, LOOP, SECONDS
from tests.support.cli import ROOT, environment, git

MANIFEST: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
(STEP,) = MANIFEST["runs"]["steps"]
EXPRESSION = re.compile(r"\$\{\{ (.+?) \}\}")
# Stands in for a Python that has what it needs: says what it is asked, one word in a line.
STAND_IN = '#!/bin/sh\n[ "$1" = -c ] && exit $MISSING\nprintf "%s\\n" "$@"\nexit $CODE\n'


def evaluate(text: str, known: Mapping[str, str]) -> str:
    """Names and texts with `||` between them, as GitHub reads them: the first that is not empty."""

    def one(match: re.Match[str]) -> str:
        parts = [each.strip() for each in match[1].split("||")]
        texts = (e.strip("'") if e.startswith("'") else known.get(e, "") for e in parts)
        return next(filter(None, texts), "")

    return EXPRESSION.sub(one, text)


@dataclass(frozen=True)
class Acted:
    """What the step left behind."""

    code: int
    out: str
    err: str
    outputs: dict[str, str] = field(default_factory=dict)
    summary: str = ""

    @property
    def words(self) -> list[str]:
        """What Python was asked, from the verb on."""
        lines = self.out.splitlines()
        return lines[lines.index("prove") + 1 :] if "prove" in lines else []


@dataclass(frozen=True)
class Runner:
    """A checkout of one commit, whose origin has more."""

    checkout: Path
    commits: dict[str, str]

    def act(
        self, inputs: Mapping[str, str], event: Mapping[str, str] | None = None, **others: str
    ) -> Acted:
        folder = self.checkout.parent
        defaults = {name: each.get("default", "") for name, each in MANIFEST["inputs"].items()}
        assert inputs.keys() <= defaults.keys()
        known = {f"inputs.{name}": text for name, text in {**defaults, **inputs}.items()}
        known |= {"github.action_path": str(ROOT), **(event or {})}
        files = {name: folder / name for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
        for file in files.values():
            file.write_text("")
        variables = {name: evaluate(text, known) for name, text in STEP["env"].items()}
        variables |= {name: str(file) for name, file in files.items()}
        done = subprocess.run(
            ["bash", "-c", STEP["run"]],
            cwd=self.checkout,
            env=environment({**variables, "RUNNER_TEMP": str(folder), **others}),
            capture_output=True,
            text=True,
            timeout=SECONDS,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        said = dict(each.split("=", 1) for each in files["GITHUB_OUTPUT"].read_text().splitlines())
        handed = {f"steps.{STEP['id']}.outputs.{name}": text for name, text in said.items()}
        outputs = {
            name: evaluate(each["value"], handed) for name, each in MANIFEST["outputs"].items()
        }
        summary = files["GITHUB_STEP_SUMMARY"].read_text()
        return Acted(done.returncode, done.stdout, done.stderr, outputs, summary)


def make_runner(folder: Path) -> Runner:
    git(folder, "init", "-q", "-b", "main", "work")
    work, commits = folder / "work", {}
    for name, text in (("base", LOOP), ("repair", FIXED), ("main", FIXED + "# the same\n")):
        (work / "train.py").write_text(text)
        git(work, "add", "-A")
        git(work, "commit", "-q", "-m", name)
        if name != "main":
            git(work, "branch", name)
        commits[name] = git(work, "rev-parse", "HEAD")
    git(folder, "clone", "-q", "--bare", "work", "origin.git")
    # GitHub lets a runner fetch any commit by its hash.
    git(folder / "origin.git", "config", "uploadpack.allowAnySHA1InWant", "true")
    git(folder, "clone", "-q", "--depth", "1", f"file://{folder}/origin.git", "checkout")
    (folder / "python").write_text(STAND_IN)
    (folder / "python").chmod(0o755)
    return Runner(folder / "checkout", commits)


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    return make_runner(tmp_path)


def ask(
    runner: Runner,
    inputs: Mapping[str, str] | None = None,
    event: Mapping[str, str] | None = None,
    *,
    code: int = 0,
    missing: int = 0,
) -> Acted:
    """Of the stand-in, which is what `python` names by default."""
    path = {"PATH": f"{runner.checkout.parent}:{os.environ['PATH']}"}
    words = {"script": "train.py", **(inputs or {})}
    return runner.act(words, event, CODE=str(code), MISSING=str(missing), **path)


def test_every_input_is_used_and_every_output_is_written() -> None:
    told = " ".join(STEP["env"].values())
    assert set(re.findall(r"inputs\.([\w-]+)", told)) == set(MANIFEST["inputs"])
    for name in STEP["env"]:
        assert f"${name}" in STEP["run"] or f"${{{name}" in STEP["run"], name
    for name, each in MANIFEST["outputs"].items():
        assert each["value"] == f"${{{{ steps.{STEP['id']}.outputs.{name} }}}}"


def test_by_default_the_commit_is_compared_with_the_one_before(runner: Runner) -> None:
    found = ask(runner)
    json_file = str(runner.checkout.parent / "proof.json")
    assert found.code == 0, found.err
    assert found.words == [
        *(runner.commits["repair"], runner.commits["main"]),
        *("--github", "--json", json_file, "--seconds", "60", "--equal-steps", "20"),
        *("--fail-if-diverges", "--", "train.py"),
    ]
    assert found.outputs["json"] == json_file
    assert "pip" not in found.out


@pytest.mark.parametrize(
    ("inputs", "event", "before", "after"),
    [
        ({}, {"github.event.pull_request.base.sha": "base"}, "base", "main"),
        ({"before": "base"}, {"github.event.pull_request.base.sha": "repair"}, "base", "main"),
        ({"before": "HEAD~2", "after": "HEAD~1"}, {}, "base", "repair"),
        ({"before": "base", "after": "repair"}, {}, "base", "repair"),
    ],
)
def test_commits_that_the_checkout_has_not_are_fetched(
    runner: Runner, inputs: dict[str, str], event: dict[str, str], before: str, after: str
) -> None:
    hashes = {name: runner.commits[each] for name, each in event.items()}
    found = ask(runner, inputs, hashes)
    assert found.code == 0, found.err
    assert found.words[:2] == [runner.commits[before], runner.commits[after]]


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({"fail-if-slower": "2%"}, ["--fail-if-slower", "2%", "--fail-if-diverges", "--"]),
        ({"fail-if-diverges": "false"}, ["--equal-steps", "20", "--"]),
        ({"seconds": "5", "equal-steps": "3"}, ["--seconds", "5", "--equal-steps", "3"]),
        ({"script": "my train.py"}, ["--", "my train.py"]),
        # Whatever a file is called: what the script is given is no pattern of the shell's.
        ({"arguments": "--epochs 1 *.py $HOME"}, ["train.py", "--epochs", "1", "*.py", "$HOME"]),
    ],
)
def test_an_input_becomes_words(runner: Runner, inputs: dict[str, str], words: list[str]) -> None:
    found = ask(runner, inputs).words
    at = found.index(words[0])
    assert found[at : at + len(words)] == words


def test_the_exit_code_is_that_of_prove(runner: Runner) -> None:
    assert [ask(runner, code=code).code for code in (0, 1, 3)] == [0, 1, 3]


def test_an_unknown_commit_ends_it_before_anything_runs(runner: Runner) -> None:
    found = ask(runner, {"before": "nonsense"})
    assert found.code != 0
    assert found.words == []
    assert "nonsense" in found.err


def test_what_python_lacks_is_installed_first(runner: Runner) -> None:
    lines = ask(runner, missing=1).out.splitlines()
    assert lines[:4] == ["-m", "pip", "install", "--quiet"]
    assert {"psutil", "rich"} < {*lines[4 : lines.index("diagnose")]}


@pytest.fixture(scope="module")
def acted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Runner, Acted]:
    """With the real tool, on the repair of a slow loop."""
    runner = make_runner(tmp_path_factory.mktemp("action"))
    inputs = {
        "script": "train.py",
        "arguments": "--my_steps 100000",
        "before": "base",
        "equal-steps": "6",
        "fail-if-slower": "2%",
        "python": sys.executable,
    }
    return runner, runner.act(inputs)


@pytest.mark.child
def test_it_proves_a_repair_and_hands_on_what_it_promises(acted: tuple[Runner, Acted]) -> None:
    runner, found = acted
    assert found.code == 0, found.err
    proof = json.loads(Path(found.outputs["json"]).read_text())
    assert proof["commits"] == [runner.commits["base"], runner.commits["main"]]
    assert (found.outputs["speed"], found.outputs["equality"]) == ("FASTER", "EQUAL")
    assert found.outputs["speed"] == proof["speed"]["verdict"]
    assert float(found.outputs["ratio"]) == pytest.approx(proof["speed"]["ratio"], abs=1e-4)
    assert 1.01 < proof["speed"]["ratio_ci"][0] < proof["speed"]["ratio"]
    assert proof["equality"]["step"] is None
    assert found.summary.startswith("**FASTER: ")
    assert "| results | 6 steps |" in found.summary
    assert "::warning" not in found.out
    assert len(git(runner.checkout, "worktree", "list").splitlines()) == 1


@pytest.mark.child
def test_the_line_that_got_faster_is_the_loop(acted: tuple[Runner, Acted]) -> None:
    proof = json.loads(Path(acted[1].outputs["json"]).read_text())
    first = proof["lines"][0]
    assert (first["file"], first["function"], first["edited"]) == ("train.py", "features", True)
    assert "row * 2.0" in LOOP.splitlines()[first["line"] - 1]
    assert first["before_ms"] > first["after_ms"]
    assert proof["memory_bytes"][0]["value"] > 1e7


@pytest.mark.child
def test_a_gate_that_fails_fails_the_step_and_warns_on_the_line(runner: Runner) -> None:
    inputs = {"script": "train.py", "before": "HEAD", "after": "base", "fail-if-slower": "2%"}
    found = runner.act({**inputs, "equal-steps": "3", "python": sys.executable})
    assert found.code == 1, found.err
    assert found.outputs["speed"] == "SLOWER"
    (warning,) = [each for each in found.out.splitlines() if each.startswith("::warning")]
    assert warning.startswith("::warning file=train.py,line=")
