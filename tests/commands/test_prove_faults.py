"""What does `prove` say of sides that cannot be compared, and of answers that cannot be written?"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from diagnose.analyze.prove.proof import prove as prove_record
from diagnose.commands.cli import main
from diagnose.commands.shared import throwaway
from diagnose.measure.prove import referee
from diagnose.records.codec import dumps
from diagnose.records.prove import ProveRecord
from tests.commands.test_prove import FIXED
from tests.support.cli import ROOT, Outcome, heard, started
from tests.support.records.prove import record
from tests.support.records.script import golden_record

THREE_STEPS = FIXED.replace("range(steps)", "range(3)")
PORT = """
import socket
held = socket.socket()
held.bind(("127.0.0.1", {port}))
held.listen()
"""
LOCK = """
import fcntl
held = open({path!r})
fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
"""
# Memory for one of them, which no test can take from a whole machine: a lock stands for it.
MEMORY = """
import fcntl, os, signal
held = open({path!r})
try:
    fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    {end}
"""
BESIDE = "alone it runs, but not beside the other side: does it need a port, a lock or most of"
TOGETHER = "both sides must fit into memory at once"


def compare(folder: Path, *words: str) -> Outcome:
    """Whatever comes of it, it says one sentence, and nothing is left behind."""
    temporary = folder.with_name("temporary")
    temporary.mkdir()
    before = {*folder.iterdir()}
    command = [sys.executable, "-m", "diagnose", "prove", *words, "--seconds", "1"]
    extra = {"PYTHONPATH": str(ROOT), "TMPDIR": str(temporary)}
    with started(command, extra, cwd=folder) as running:
        found = running.finish()
    assert "Traceback" not in found.err, found.err
    assert len(found.complaints) == 1, found.err
    assert found.left == ()
    assert {*folder.iterdir()} == before
    assert not list(temporary.glob("diagnose-prove-*"))
    return found


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (tmp_path / "held").touch()
    return folder


def both(folder: Path, code: str) -> tuple[str, str]:
    for name in ("before.py", "after.py"):
        (folder / name).write_text(code)
    return "before.py", "after.py"


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def test_a_script_without_a_step(project: Path) -> None:
    found = compare(project, *both(project, "print('ready')\n"))
    assert found.code == 3
    assert found.complaint == (
        "before.py ended without a step: no optimizer step and no call of a model was seen"
    )
    assert "INCONCLUSIVE" in found.out
    assert "CANNOT TELL" in found.out


def test_fewer_steps_than_asked_are_compared_and_not_timed(project: Path) -> None:
    found = compare(project, *both(project, THREE_STEPS), "--equal-steps", "8", "--json", "-")
    assert found.code == 3
    assert found.complaint == "before.py has too few steps to be timed"
    proof = json.loads(found.out)
    assert (proof["equality"]["verdict"], proof["equality"]["steps"]) == ("EQUAL", 3)
    assert (proof["speed"]["verdict"], proof["speed"]["blocks"]) == ("INCONCLUSIVE", 0)


@pytest.mark.parametrize(
    ("holding", "why"),
    [(PORT, "Address already in use"), (LOCK, "Resource temporarily unavailable")],
    ids=["port", "lock"],
)
def test_what_only_one_side_can_hold(project: Path, holding: str, why: str) -> None:
    code = holding.format(port=free_port(), path=str(project.with_name("held")))
    found = compare(project, *both(project, code + FIXED))
    assert found.code == 3
    assert found.complaint.startswith("after.py ended with ")
    assert why in found.complaint
    assert BESIDE in found.complaint


@pytest.mark.parametrize(
    "end", ['raise MemoryError("no room")', "os.kill(os.getpid(), signal.SIGKILL)"]
)
def test_memory_for_one_side_only(project: Path, end: str) -> None:
    code = MEMORY.format(path=str(project.with_name("held")), end=end)
    found = compare(project, *both(project, code + FIXED))
    assert found.code == 3
    assert found.complaint.startswith("after.py ")
    assert TOGETHER in found.complaint
    assert BESIDE in found.complaint


def test_a_change_that_finds_nothing_to_change(project: Path) -> None:
    (project / "train.py").write_text(FIXED)
    found = compare(project, "train.py", "--with", "workers")
    assert found.code == 3
    assert found.complaint == "--with workers found nothing to change"
    assert "INCONCLUSIVE" in found.out


# --- without a process: the record is made by hand ---


class Proven:
    """Stands in for the referee that measures."""

    def __init__(self, *_: object) -> None:
        self.record = record()

    def run(self) -> None:
        pass


@pytest.mark.parametrize(("words", "code"), [(["--json", "/dev/full"], 3), ([], 0)])
def test_an_answer_is_told_before_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], code: int
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(referee, "Referee", Proven)
    found = heard(lambda: main(["prove", *both(tmp_path, FIXED), *words]))
    assert found.code == code
    assert prove_record(record()).sentence in found.out.replace("\\", "")
    told = ["/dev/full cannot be written: No space left on device"] if words else []
    assert found.complaints == told


def run_options(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tried: Sequence[ProveRecord]
) -> Outcome:
    """`script --options` of a run that was made by hand; it is interrupted after these."""

    def run_thrown_away(arguments: Any) -> int:
        Path(os.environ["DIAGNOSE_RECORD"]).write_bytes(dumps(golden_record()))
        return 0

    def try_options(*_: object) -> Iterator[tuple[str, ProveRecord]]:
        yield from (("compile", each) for each in tried)
        if not tried:
            raise KeyboardInterrupt

    monkeypatch.chdir(folder)
    monkeypatch.setattr(throwaway, "run_thrown_away", run_thrown_away)
    monkeypatch.setattr(referee, "try_options", try_options)
    (folder / "train.py").write_text(FIXED)
    words = ["--options", "--json", "why.json", "--label", "train", "train.py"]
    return heard(lambda: main(["script", *words]))


def test_what_options_prove_is_in_the_json_and_in_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    after = replace(record().after, title="train.py --with compile")
    found = run_options(tmp_path, monkeypatch, [record(after=after)])
    assert found.code == 0, found.err
    (option,) = json.loads((tmp_path / "why.json").read_text())["options"]
    assert option["command"] == "diagnose prove train.py --with compile"
    assert (option["tried"]["speed"], option["tried"]["equality"]) == ("FASTER", "EQUAL")
    assert option["tried"]["sentence"] in found.err.replace("\\", "")
    report = (tmp_path / "reports" / "train" / "report.md").read_text()
    assert option["tried"]["sentence"] in report.replace("\\", "")
    assert heard(lambda: main(["check", "--allow-dirty"])).code == 0


def test_options_that_are_interrupted_keep_the_findings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = run_options(tmp_path, monkeypatch, [])
    assert (found.code, found.complaint) == (130, "interrupted")
    told = json.loads((tmp_path / "why.json").read_text())
    assert told["findings"]
    assert [each["tried"] for each in told["options"]] == [None]


@pytest.mark.parametrize(
    ("words", "who"),
    [(["prove", "a.py", "b.py"], "prove"), (["script", "--options", "a.py"], "--options")],
)
def test_ranks_are_refused_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, words: list[str], who: str
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    found = heard(lambda: main(words))
    assert found.code == 2
    assert found.complaint.startswith(f"{who} compares one process with one process: start it ")
