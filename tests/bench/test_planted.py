"""Are the planted scripts what their table says? They run, agree with their twins, carry marks."""

from __future__ import annotations

import contextlib
import io
import math
import os
import re
import runpy
import socket
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bench.planted.truth import CASES
from diagnose.measure.twins import cases
from diagnose.measure.twins.cases import (
    Case,
    Culprit,
    PatchError,
    apply_patch,
    find_lines,
    fixed_script,
)
from diagnose.records import script as findings
from tests.support.cli import ROOT, launch

STEPS = 2
# One for each cause, because running all takes minutes; `make accuracy` runs every one of them.
RUN_HERE = {case.name.split("_")[0]: case for case in reversed(CASES)}.values()
_LOSS = re.compile(r"-?\d+\.\d+")


@pytest.fixture(scope="module", autouse=True)
def _one_quiet_process() -> Iterator[None]:
    """One thread, so that sums have one order; a group of one rank for those that want several."""
    threads, set_threads = torch.get_num_threads(), torch.set_num_threads
    with socket.create_server(("127.0.0.1", 0)) as free, pytest.MonkeyPatch.context() as patch:
        port = free.getsockname()[1]
        free.close()
        for name, value in {"RANK": 0, "WORLD_SIZE": 1, "MASTER_PORT": port}.items():
            patch.setenv(name, str(value))
        patch.setenv("MASTER_ADDR", "127.0.0.1")
        set_threads(1)
        patch.setattr(torch, "set_num_threads", lambda count: None)
        yield
    set_threads(threads)


def run_script(script: Path, steps: int = STEPS) -> list[float]:
    """What it prints per step; its neighbours can be imported, as when Python runs it."""
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        texts = [path.read_text() for path in script.parent.rglob("*.py")]
        words = ["--steps", str(steps)] if any('"--steps"' in text for text in texts) else []
        patch.setenv("STEPS", str(steps))
        patch.setattr(sys, "argv", [str(script), *words])
        patch.syspath_prepend(str(script.parent))
        runpy.run_path(str(script), run_name="__main__")
    lines = printed.getvalue().splitlines()
    assert len(lines) == steps, f"{script.parent.name}/{script.name} prints one line per step"
    losses = [float(_find_loss(line)) for line in lines]
    assert all(math.isfinite(loss) for loss in losses)
    return losses


def forget_neighbours(directory: Path) -> None:
    """Modules that a script imported from its folder: its twin has others of the same names."""
    for name, module in list(sys.modules.items()):
        if Path(getattr(module, "__file__", None) or "/").is_relative_to(directory):
            del sys.modules[name]


def _find_loss(line: str) -> str:
    found = _LOSS.search(line)
    assert found is not None, line
    return found.group()


@pytest.mark.parametrize("case", RUN_HERE, ids=lambda case: case.name)
def test_both_twins_run_and_agree_where_they_should(case: Case, tmp_path: Path) -> None:
    slow = run_script(case.slow)
    if case.repair.exists():
        forget_neighbours(case.directory)
        fixed = run_script(fixed_script(case, tmp_path))
        forget_neighbours(tmp_path)
        if case.tolerance is not None:
            assert fixed == pytest.approx(slow, rel=case.tolerance, abs=case.tolerance)
    else:
        assert case.is_healthy


def test_a_script_runs_as_its_user_runs_it() -> None:
    case = next(case for case in CASES if case.name == "host_metrics")
    done = launch([sys.executable, os.path.relpath(case.slow, ROOT), "--steps", "1"], {})
    assert done.code == 0, done.err
    assert _LOSS.search(done.out)


def test_every_cause_of_the_tool_is_planted() -> None:
    assert {cause for case in CASES for cause in case.causes} == set(findings.CAUSES)


def test_every_directory_is_a_case() -> None:
    scripts = {path.parent.name for path in cases.DIRECTORY.glob("*/*.py")}
    assert sorted(case.name for case in CASES) == sorted(scripts)
    assert all(case.name.split("_")[0] == case.causes[0] for case in CASES)


def test_every_culprit_is_marked_and_nothing_else_is() -> None:
    for case in CASES:
        texts = {
            path.relative_to(case.directory).as_posix(): path.read_text()
            for path in case.directory.rglob("*.py")
        }
        for culprit in case.culprits:
            for number in find_lines(case, culprit):
                line = texts[culprit.file].splitlines()[number - 1]
                assert line.split("#")[0].strip(), f"{case.name}:{number} marks no code"
        marks = sum(text.count("# culprit:") for text in texts.values())
        assert marks == len(case.culprits), case.name


def test_every_repair_applies_compiles_and_leaves_no_mark(tmp_path: Path) -> None:
    """A twin that the patch left slow would be judged as a repair that gains nothing."""
    assert all(case.repair.exists() or case.is_healthy for case in CASES)
    for case in CASES:
        if not case.repair.exists():
            continue
        fixed = fixed_script(case, tmp_path).parent
        for path in fixed.rglob("*.py"):
            text = path.read_text()
            compile(text, str(path), "exec")
            assert "# culprit:" not in text
        patched = case.repair.read_text().count("\n--- a/") + 1
        before = {path: path.read_text() for path in case.directory.rglob("*.py")}
        changed = [
            path
            for path, text in before.items()
            if (fixed / path.relative_to(case.directory)).read_text() != text
        ]
        assert len(changed) == patched, case.name


PATCH = """\
--- a/slow.py
+++ b/slow.py
@@ -1,3 +1,3 @@
 one
-two
+2
 three
@@ -5 +5,2 @@
 five
+six
"""


@pytest.mark.parametrize(
    ("script", "patch", "complaint"),
    [
        ("one\ntwo\nthree\nfour\nfive\n", PATCH, ""),
        ("one\nTWO\nthree\nfour\nfive\n", PATCH, "slow.py:2 is not 'two'"),
        ("one\ntwo\nthree\nfour\n", PATCH, "slow.py:5 is not 'five'"),
        ("zero\none\ntwo\nthree\nfour\nfive\n", PATCH, "slow.py:1 is not 'one'"),
        ("one\ntwo\nthree\nfour\nfive\n", PATCH.replace("+six\n", ""), "is cut off"),
        ("one\ntwo\nthree\nfour\nfive\n", PATCH + "loose\n", "'loose' begins no hunk"),
        ("one\n", PATCH.replace("b/slow", "b/fast"), "slow.py must keep its name"),
    ],
)
def test_a_patch_fits_exactly_or_fails(
    tmp_path: Path, script: str, patch: str, complaint: str
) -> None:
    slow = tmp_path / "slow.py"
    slow.write_text(script)
    if complaint:
        with pytest.raises(PatchError, match=re.escape(complaint)):
            apply_patch(tmp_path, patch)
        assert slow.read_text() == script
    else:
        apply_patch(tmp_path, patch)
        assert slow.read_text() == "one\n2\nthree\nfour\nfive\nsix\n"


@pytest.mark.parametrize(
    "text",
    ["x = 1\n", "x = 1  # culprit: sync\n" * 2, "x = 1  # culprit: sync\n" + "# cost: sync\n" * 2],
)
def test_a_missing_or_double_mark_is_refused(tmp_path: Path, text: str) -> None:
    case = replace(CASES[0], name="sync_case", culprits=(Culprit("sync"),), home=tmp_path)
    case.directory.mkdir()
    case.slow.write_text(text)
    with pytest.raises(ValueError, match=r"sync_case/slow.py must mark one line for sync"):
        find_lines(case, case.culprits[0])
