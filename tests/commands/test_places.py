"""What if this is no place to run, or nothing can be written here? One sentence, nothing lost."""

from __future__ import annotations

import ast
import json
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from diagnose.__main__ import main
from diagnose.commands.prove import _keep
from diagnose.render import check, store
from tests.support.cli import FAULTY, ROOT, Outcome, command, launch, private_mounts, start
from tests.support.folders import look
from tests.support.records import prove, run

DENIED = "no permission to write in {}; --reports DIR names another place"
TRAIN = """
import torch

model = torch.nn.Linear(64, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(400):
    optimizer.zero_grad()
    model(torch.randn(256, 64)).square().mean().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("version_info", (3, 9, 18), "Python 3.10 or newer is needed, this is 3.9"),
        ("platform", "darwin", "only Linux is supported, this is darwin"),
    ],
)
def test_another_python_or_system_is_one_sentence(
    name: str, value: object, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, name, value)
        code = main(["run"])
    assert (code, capsys.readouterr().err) == (2, f"diagnose: {sentence}\n")


def test_an_older_python_can_read_as_far_as_that_sentence() -> None:
    for name in ("__init__.py", "__main__.py"):
        text = (ROOT / "diagnose" / name).read_text(encoding="utf-8")
        ast.parse(text, feature_version=(3, 7))


def test_make_names_the_python_that_is_too_old(tmp_path: Path) -> None:
    old, environment = tmp_path / "python3", tmp_path / "environment"
    pretend = "import sys; sys.version_info = (3, 9, 18); exec(sys.argv[1])"
    old.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{pretend}" "$2"\n')
    old.chmod(0o755)
    words = ["make", f"VENV={environment}", f"SYSTEM_PYTHON={old}", "report"]
    # Whoever runs these tests may have told make which Python to use.
    done = start(words, {"MAKEFLAGS": "", "PYTHON": ""})
    sentence = "Python 3.10 or newer is needed, this is 3.9; set SYSTEM_PYTHON="
    assert (done.returncode, done.stderr.splitlines()[0]) == (2, sentence)
    assert not environment.exists()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a user works: a script, and a report of before."""
    folder = tmp_path / "work"
    record = run.run_record()
    store.save(record, folder / "reports" / record.header.label)
    check.write_report(folder / "reports" / record.header.label)
    (folder / "train.py").write_text(TRAIN)
    return folder


def diagnose_in(folder: Path, *words: object) -> Outcome:
    """The command in this folder, where nothing can be written and nothing may change."""
    # As an image or a share is mounted: root cannot write there either.
    bind, seal = f'mount --bind "{folder}" "{folder}"', f'mount -o remount,bind,ro "{folder}"'
    before = look(folder)
    prefix = private_mounts(bind, seal, f'cd "{folder}"')
    done = launch([*prefix, *command(*words)], {"PYTHONPATH": str(ROOT)})
    assert look(folder) == before
    return done


def test_a_run_ends_before_it_measures(folder: Path) -> None:
    words = ("--workload", ROOT / FAULTY, "--smoke", "--device", "cpu", "--label", "new")
    done = diagnose_in(folder, "run", *words, "--stages", "inference")
    assert (done.code, done.out) == (3, "")
    assert done.complaint == f"reports/new/.lock was not written: {DENIED.format('reports/new')}"


def test_a_report_that_cannot_be_rendered_stays_as_it_is(folder: Path) -> None:
    done = diagnose_in(folder, "report")
    assert done.code == 3
    assert done.complaint.endswith(DENIED.format("reports/rtx-4090"))


def test_a_script_is_diagnosed_and_its_record_is_printed(folder: Path) -> None:
    done = diagnose_in(folder, "script", "--seconds", 6, "--label", "new", "train.py")
    assert done.code == 3
    assert "train.py · " in done.err
    assert done.complaints[-1].endswith(DENIED.format(folder / "reports" / "new"))
    assert rescued(done.err)["script"] == "train.py"


def test_what_was_proven_is_printed_where_it_cannot_be_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "reports").write_text("a file where a folder should be\n")
    with pytest.raises(store.StoreError, match="--reports DIR names another place"):
        _keep(prove.record(), Namespace(reports=tmp_path / "reports", label="new"))
    assert rescued(capsys.readouterr().err)["header"]["label"] == "new"


def rescued(text: str) -> dict[str, Any]:
    """The record among what was said."""
    lines = text.splitlines()
    found: dict[str, Any] = json.loads("\n".join(lines[lines.index("{") : lines.index("}") + 1]))
    return found
