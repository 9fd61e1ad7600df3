"""Does `prove` referee real changes? Run as a user and as a workflow would run it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from diagnose.analyze.prove.proof import prove as prove_record
from diagnose.commands.cli import main
from diagnose.commands.script import _try_options
from diagnose.measure.prove import referee
from diagnose.measure.prove.racer import Failed, Racer
from diagnose.measure.prove.referee import try_options
from diagnose.measure.prove.sides import Request, open_sides
from diagnose.records.diagnosis import Option
from diagnose.records.prove import Options
from tests.support.cli import ROOT, Outcome, environment, git, heard, started
from tests.support.records.prove import record

SECONDS = 200
TRAIN = """
    import sys
    import torch

    torch.manual_seed(0)
    steps = int(sys.argv[sys.argv.index("--my_steps") + 1]) if "--my_steps" in sys.argv else 10**6
    model = torch.nn.Linear(64, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = torch.randn(256, 64)

    def features(rows):
        made = []
        for row in rows:
            made.append(row * 2.0 + 1.0)
        return torch.stack(made)

    for step in range(steps):
        optimizer.zero_grad()
        model(features(batch)).square().mean().backward()
        optimizer.step()
"""
LOOP = textwrap.dedent(TRAIN)
START = LOOP.index("    made = []")
FIXED = LOOP[:START] + "    return rows * 2.0 + 1.0\n" + LOOP[LOOP.index("\nfor step") :]
WRONG = FIXED.replace("rows * 2.0 + 1.0", "rows * 2.0 + (1.0 if calls < 4 else 1.001)").replace(
    "def features(rows):\n", "calls = -1\n\ndef features(rows):\n    global calls\n    calls += 1\n"
)


def prove(folder: Path, *words: str, **variables: str) -> Outcome:
    path = os.pathsep.join(filter(None, (str(ROOT), variables.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, "-m", "diagnose", "prove", *words],
        cwd=folder,
        env=environment({**variables, "PYTHONPATH": path}),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return Outcome(done.returncode, done.stdout, done.stderr)


def test_a_sabotaged_twin_diverges_at_its_step(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "before.py").write_text(FIXED + "    open('notes.txt', 'a').write('x')\n")
    (tmp_path / "after.py").write_text(WRONG)
    reports = tmp_path / "reports"
    words = ("--seconds", "1", "--equal-steps", "8", "--fail-if-diverges", "--label", "mine")
    found = prove(tmp_path, "before.py", "after.py", *words, "--reports", str(reports))
    assert found.code == 1, found.err
    assert "DIVERGES AT STEP 5" in found.out
    assert (tmp_path / "notes.txt").read_text() == "mine"  # a linked file is put back
    assert "1 file was put back" in found.err
    assert not list(tmp_path.glob(".diagnose-*"))
    kept = json.loads((reports / "mine" / "prove.json").read_text())
    assert [len(each["values"]["loss"]) for each in kept["runs"]] == [8] * 4
    assert "diagnose-prove-" not in (reports / "mine" / "prove.json").read_text()
    assert "DIVERGES AT STEP 5" in (reports / "mine" / "report.md").read_text()
    assert heard(lambda: main(["check", "--allow-dirty", "--reports", str(reports)])).code == 0


@pytest.mark.alone
def test_a_named_change_of_a_script_that_ends_early(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(FIXED.replace("lr=0.1", "lr=0.1, momentum=0.9"))
    words = ("--with", "fused", "--seconds", "15", "--json", "-", "--equal-steps", "5")
    found = prove(tmp_path, "train.py", *words, "--", "--my_steps", "400")
    proof = json.loads(found.out)
    assert found.code == 0, found.err
    assert proof["after"] == "train.py --with fused"
    assert proof["equality"]["verdict"] in ("EQUAL", "EQUAL WITHIN ROUNDING")
    assert proof["speed"]["blocks"] > 0


def test_options_are_tried_in_twins_and_a_crash_loses_its_own_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text(
        textwrap.dedent("""
        import torch

        class Model(torch.nn.Linear):
            def forward(self, rows):
                assert not torch.is_autocast_enabled("cpu"), "only float32"
                return super().forward(rows)

        model = Model(64, 8)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for epoch in range(10**6):
            for rows in torch.utils.data.DataLoader(torch.randn(128, 64), batch_size=8):
                optimizer.zero_grad()
                model(rows).square().mean().backward()
                optimizer.step()
    """)
    )
    monkeypatch.chdir(tmp_path)
    options = Options(seconds=1.0, equal_steps=4)
    tried = dict(try_options("train.py", (), ["autocast", "batch"], options))
    assert "AssertionError" in tried["autocast"].missing
    assert "only float32" in tried["autocast"].missing
    proof = prove_record(tried["batch"])
    assert not tried["batch"].missing
    assert (proof.after, proof.speed.per) == ("train.py --with batch", "sample")
    assert "8 samples before and 16 after" in proof.equality.reason
    assert proof.speed.blocks > 0


def test_workers_of_a_shuffled_loader_change_no_random_number(tmp_path: Path) -> None:
    """Also in the second epoch and later, where a loader that keeps its workers draws otherwise."""
    (tmp_path / "train.py").write_text(
        textwrap.dedent("""
        import torch

        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(64, 8), torch.nn.Dropout(0.5))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loader = torch.utils.data.DataLoader(torch.randn(32, 64), batch_size=16, shuffle=True)
        for epoch in range(10**6):
            for rows in loader:
                optimizer.zero_grad()
                model(rows).square().mean().backward()
                optimizer.step()
    """)
    )
    words = ("--with", "workers", "--seconds", "1", "--equal-steps", "9", "--json", "-")
    found = prove(tmp_path, "train.py", *words)
    assert json.loads(found.out)["equality"]["verdict"] == "EQUAL", found.err


def test_a_side_that_asks_for_input(tmp_path: Path) -> None:
    (tmp_path / "before.py").write_text(FIXED)
    (tmp_path / "after.py").write_text("input('name: ')\n")
    found = prove(tmp_path, "before.py", "after.py", "--fail-if-slower", "2%")
    assert found.code == 3
    assert "after.py ended with EOFError" in found.complaints[0]
    assert "asks for input" in found.complaints[0]
    assert "CANNOT TELL" in found.out
    assert "INCONCLUSIVE" in found.out


def test_a_card_that_lets_in_one_process_is_told(
    tmp_path: Path, fakegpu_env: dict[str, str]
) -> None:
    """Each side holds its context while it is stopped, so that the second one is refused."""
    script = FIXED.replace(
        "import torch\n", "import torch\n\ntorch.set_default_device('fakegpu')\n"
    )
    for name in ("before.py", "after.py"):
        (tmp_path / name).write_text(script)
    variables = {**fakegpu_env, "FAKEGPU_EXCLUSIVE": str(tmp_path / "lock")}
    found = prove(tmp_path, "before.py", "after.py", "--fail-if-slower", "2%", **variables)
    assert found.code == 3
    assert "devices are busy or unavailable" in found.complaints[0]
    assert "both sides must be on it at once" in found.complaints[0]
    assert "nvidia-smi -c 0" in found.complaints[0]


def test_ctrl_c_tells_what_is_known_and_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    git(tmp_path, "init", "-q", "project")
    (folder / "train.py").write_text(FIXED + "    open('log.txt', 'a').write('x')\n")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "one")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    words = [sys.executable, "-m", "diagnose", "prove", "HEAD", "HEAD"]
    words += ["--seconds", "500", "--equal-steps", "500000", "--", "train.py"]
    extra = {"PYTHONPATH": str(ROOT), "TMPDIR": str(temporary)}
    with started(words, extra, cwd=folder) as running:
        # The steps that are compared run one side at a time.
        running.wait_until(lambda: list(temporary.rglob("log.txt")))
        found = running.interrupt()
    assert found.code == 130, found.err
    assert found.left == ()
    assert list(temporary.glob("diagnose-prove-*")) == []
    assert len(git(folder, "worktree", "list").splitlines()) == 1
    assert "interrupted" in found.err
    assert "results: CANNOT TELL" in found.out
    assert not (folder / "log.txt").exists()


def test_a_side_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text("import time\ntime.sleep(1000)\n")
    monkeypatch.chdir(tmp_path)
    with open_sides(Request(("train.py",), change="fused")) as sides:
        racer = Racer(sides.before, (), timeout=0.5)
        racer.start("before", 3)
        with racer, pytest.raises(Failed, match=r"did not come to the end .* within 0\.5 s"):
            racer.read_values()


def test_script_tells_what_its_options_prove(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Any] = []

    def try_them(*words: Any) -> Any:
        asked.append(words[:3])
        return [("fused", record())]

    monkeypatch.setattr(referee, "try_options", try_them)
    option = Option("a fused optimizer", "", "", "diagnose prove train.py --with fused")
    theirs: dict[str, Any] = {"script": "train.py", "arguments": ["--lr", "1"]}
    assert not list(_try_options(Namespace(**theirs, module=True), [option]))
    assert not asked
    assert "name the file of train.py without -m" in capsys.readouterr().err
    (tried,) = _try_options(Namespace(**theirs, module=False), [option])
    assert asked == [("train.py", ["--lr", "1"], ["fused"])]
    told = capsys.readouterr().err
    assert "a fused optimizer:" in told
    proof = prove_record(record())
    assert proof.sentence in told
    assert (tried.change, tried.sentence) == ("fused", proof.sentence)
    assert (tried.speed, tried.ratio, tried.equality) == ("FASTER", proof.speed.ratio, "EQUAL")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["before.py"], "name two commits, two .py files, or one .py file and --with NAME"),
        (["main", "HEAD"], "name the script: diagnose prove main HEAD -- train.py"),
        (["a.py", "main"], "name two commits"),
        (["a.py", "b.py", "--with", "fused"], "--with takes one script"),
        (["a.py", "--with", "magic"], "invalid choice: 'magic'"),
        (["a.py", "b.py", "--fail-if-slower", "much"], "'much' is not a share such as 2%"),
        (["a.py", "b.py", "--json", "b.py"], "--json would overwrite b.py"),
        (["a.py", "b.py"], "there is no script a.py"),
        (["nonsense", "HEAD", "--", "train.py"], "there is no commit 'nonsense'"),
    ],
)
def test_a_wrong_request_is_one_sentence(words: list[str], complaint: str) -> None:
    found = heard(lambda: main(["prove", *words]))
    assert found.code == 2
    assert complaint in found.complaint


def test_what_follows_the_dashes_is_the_scripts_own() -> None:
    from diagnose.commands.prove import read_request

    request = read_request(["main", "HEAD"], ["train.py", "--my_steps", "3"], None)
    assert request == Request(("main", "HEAD"), "train.py", ("--my_steps", "3"))
    assert os.path.exists(ROOT / "action.yml")
