"""How do tests train? At the tiny size, on one thread, in this process unless a signal is due."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bench.dgca import preprocess, train

ROOT = Path(__file__).parents[2]
LENGTH = "32"  # of the tiny size


@dataclass(frozen=True)
class Data:
    folder: Path

    def file(self, name: str) -> Path:
        return self.folder / f"{name}.pt"

    def training(self, output: Path, *more: object) -> list[str]:
        """The words of a small training run; later words win over earlier ones."""
        words = ["--do_train", "--preprocessed_train", self.file("train"), "--output", output]
        words += ["--size", "tiny", "--device", "cpu", "--learning_rate", "1e-2"]
        words += ["--log_steps", 1, "--apply_prompt", "--mft", *more]
        return [str(each) for each in words]


class Attack:
    """Unpickling it creates a file."""

    def __init__(self, sentinel: Path) -> None:
        self.sentinel = sentinel

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.sentinel,)


def make_data(folder: Path, rows: int = 400) -> Data:
    assert preprocess.main(["--output", str(folder), "--rows", str(rows), "--length", LENGTH]) == 0
    return Data(folder)


def refuse(words: list[str], capsys: pytest.CaptureFixture[str], code: int = 2) -> str:
    """Run a command that must fail with this code; the one sentence that it says."""
    capsys.readouterr()
    found: int | str | None
    try:
        found = train.main(words)
    except SystemExit as ending:  # argparse
        found = ending.code
    lines = capsys.readouterr().err.strip().splitlines()
    assert found == code, lines
    assert len(lines) == 1
    return lines[0].removeprefix("train: ")


def start(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *words],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def read_log(output: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (output / "log.jsonl").read_text().splitlines()]


def read_losses(output: Path) -> dict[int, float]:
    return {each["step"]: each["loss"] for each in read_log(output) if "loss" in each}


def read_tensors(checkpoint: Path) -> dict[str, bytes]:
    names = ("model.safetensors", "training.safetensors")
    return {name: (checkpoint / name).read_bytes() for name in names}
