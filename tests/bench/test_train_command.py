"""Does a training command end with the right code, and does it leave our own faults alone?"""

from __future__ import annotations

import subprocess
import sys

import pytest

from bench.train_command import TrainingFailed, end_with_code
from diagnose.workload import WorkloadError
from tests.support.cli import ROOT


def end(error: BaseException | None) -> int:
    def run() -> int:
        if error is not None:
            raise error
        return 0

    return end_with_code("train", run, "use less")


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (None, 0, ""),
        (WorkloadError("no such file"), 2, "train: no such file\n"),
        (TrainingFailed("the loss is not finite"), 3, "train: the loss is not finite\n"),
        (MemoryError(), 3, "train: out of memory; use less\n"),
        (KeyboardInterrupt(), 130, "train: interrupted\n"),
    ],
)
def test_every_known_end_has_its_code_and_sentence(
    error: BaseException | None, code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert end(error) == code
    assert capsys.readouterr().err == said


def test_among_several_processes_one_speaks_unless_it_alone_failed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", "1")
    assert end(WorkloadError("no such file")) == 2
    assert capsys.readouterr().err == ""
    assert end(TrainingFailed("a rank is lost")) == 3
    assert capsys.readouterr().err == "train: a rank is lost\n"


def test_a_fault_of_ours_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        end(ZeroDivisionError())


@pytest.mark.parametrize("command", ["dgca.train", "dgca.preprocess", "timeseries.train"])
def test_help_answers_without_torch(command: str) -> None:
    code = f"import sys; from bench.{command} import main\n"
    code += "try: main(['--help'])\nexcept SystemExit: sys.exit('torch' in sys.modules)"
    child = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert child.returncode == 0, child.stderr
    assert "--seed" in child.stdout
