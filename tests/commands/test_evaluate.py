"""evaluate.py as its user meets it: results, fall-backs, bad input, Ctrl-C."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from diagnose.commands.evaluate import main
from tests.support.cli import ROOT
from tests.support.jobs.answers import COUNT, UNREADABLE
from tests.support.jobs.small import limit_memory
from tests.support.model_directories import widen, write_text_model

SCRIPT = ROOT / "diagnose" / "evaluate.py"
JOB = ROOT / "tests" / "support" / "jobs" / "answers.py"


@pytest.fixture(autouse=True)
def modest(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The guard limits a process's memory for good, and here that is pytest's own."""
    monkeypatch.setattr("diagnose.measure.evaluation.opening.guard", lambda *_: None)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # such small models only wait for a second one
    yield
    torch.set_num_threads(threads)


def evaluate(output: Path, *words: object) -> int:
    return main(["--workload", str(JOB), "--device", "cpu", "-o", str(output), *map(str, words)])


def read(output: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((output / "results.json").read_text())
    return result


def read_predictions(output: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (output / "predictions.jsonl").read_text().splitlines()]


def complaint(capsys: pytest.CaptureFixture[str]) -> str:
    """The only line of stderr that speaks of an error."""
    err = capsys.readouterr().err
    (line,) = [line for line in err.splitlines() if line.startswith("diagnose: ")]
    assert "Traceback" not in err
    return line.removeprefix("diagnose: ")


def start(output: Path, *words: str, cwd: Path = ROOT, **extra: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), "-o", str(output), *words],
        cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1", **extra},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_built_in_model_answers_a_file_from_any_directory(tmp_path: Path) -> None:
    lines = [{"question": f"{n} 今天天气", "answer": "今天天气很好" * n} for n in (1, 2, 3)]
    data = tmp_path / "mine.jsonl"
    data.write_text("".join(json.dumps(each) + "\n" for each in lines))
    words = ["-d", "mine.jsonl", "-b", "2", "--size", "tiny", "--max_tokens", "9"]
    words += ["--torch_dtype", "float32", "--metrics", "exact_match,bleu,rouge"]
    process = start(Path("here"), *words, "--save_predictions", "--device=cpu", cwd=tmp_path)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert "3 of 3 samples, " in err
    assert " samples/s, 0 s left" in err
    assert "result: here/results.json" in out

    result = read(tmp_path / "here")
    assert result["complete"]
    assert (result["num_samples"], result["answered"]) == (3, 3)
    assert list(result["metrics"]) == ["exact_match", "bleu", "rouge1", "rouge2", "rougeL"]
    assert (result["batch_size"], result["batch_size_used"], result["fallbacks"]) == (2, 2, [])
    assert result["settings"]["data"] == "mine.jsonl"
    assert result["settings"]["dtype"] == "float32"
    predictions = read_predictions(tmp_path / "here")
    # Random weights end where the reference does, or at the longest answer allowed.
    assert [each["generated_tokens"] for each in predictions] == [6, 9, 9]
    assert [each["references"] for each in predictions] == [[each["answer"]] for each in lines]


def test_a_batch_has_the_answers_of_single_samples(tmp_path: Path) -> None:
    for batch in (1, 4):
        words = ["--size", "tiny", "--num-samples", "6", "--max-tokens", "8", "-b", str(batch)]
        assert main([*words, "-o", str(tmp_path / str(batch)), "--save-predictions"]) == 0
    assert read_predictions(tmp_path / "1") == read_predictions(tmp_path / "4")
    assert read(tmp_path / "1")["metrics"] == read(tmp_path / "4")["metrics"]


def test_without_a_wish_predictions_do_not_stay(tmp_path: Path) -> None:
    assert evaluate(tmp_path) == 0
    result = read(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["results.json"]
    right = sum(n % 2 == 0 for n in range(COUNT))
    assert result["metrics"]["exact_match"] == pytest.approx(right / COUNT)
    # One letter has no four words.
    assert result["metrics"]["bleu"] is None
    assert "4 words" in result["reasons"]["bleu"]


def test_fall_backs_are_told_and_counted_and_change_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate(tmp_path / "free", "-b", 8, "--save-predictions") == 0
    monkeypatch.setenv("ANSWERS_LIMIT", "1")
    capsys.readouterr()
    assert evaluate(tmp_path / "short", "-b", 8, "--save-predictions") == 0
    err = capsys.readouterr().err
    for sentence in (
        "batch of 8 (it asked for 20.00 MiB more); going on with batches of 4",
        "batch of 4 (it asked for 20.00 MiB more); going on with batches of 2",
        "batch of 2 (it asked for 20.00 MiB more); going on with single samples",
    ):
        assert err.count(sentence) == 1
    assert read_predictions(tmp_path / "short") == read_predictions(tmp_path / "free")
    result = read(tmp_path / "short")
    assert [each["batch"] for each in result["fallbacks"]] == [8, 4, 2]
    assert (result["batch_size"], result["batch_size_used"]) == (8, 1)


def test_a_real_lack_of_memory_falls_back(tmp_path: Path) -> None:
    """400 MB for a batch of 4 under a limit of 250 MB more than the process has."""
    words = ["--workload", str(JOB), "-b", "4", "--device", "cpu", "--save-predictions"]
    process = start(tmp_path, *words, ANSWERS_BYTES="100000000", ANSWERS_ROOM="250000000")
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert "batch of 4 (it asked for 400000000 bytes more); going on with batches of 2" in err
    assert read(tmp_path)["batch_size_used"] == 2
    assert evaluate(tmp_path / "free", "--save-predictions") == 0
    assert read_predictions(tmp_path) == read_predictions(tmp_path / "free")


def test_no_room_for_a_single_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ANSWERS_LIMIT", "0")
    assert evaluate(tmp_path, "-b", 2) == 3
    sentence = complaint(capsys)
    assert sentence.startswith("out of memory: question '0' does not fit even alone: beside 0.0 MB")
    assert "need 20.00 MiB more" in sentence
    assert sentence.endswith(f"0 of {COUNT} answers are in {tmp_path}")
    result = read(tmp_path)
    assert result["complete"] is False
    # What was told on the way is kept, though no answer came of it.
    assert [(each["batch"], each["next_batch"]) for each in result["fallbacks"]] == [(2, 1)]


def test_ctrl_c_keeps_what_was_answered(tmp_path: Path) -> None:
    words = ["--workload", str(JOB), "-b", "2", "--device", "cpu"]
    process = start(tmp_path, *words, ANSWERS_SLEEP="er 1")
    deadline = time.monotonic() + 60
    path = tmp_path / "predictions.jsonl.part"
    while not path.exists() or path.read_text().count("\n") < 4:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert f"diagnose: interrupted; 4 of {COUNT} answers are in {tmp_path}" in err
    result = read(tmp_path)
    assert (result["complete"], result["answered"]) == (False, 4)
    assert result["metrics"]["exact_match"] == 0.5
    assert len(read_predictions(tmp_path)) == 4
    assert sorted(each.name for each in tmp_path.iterdir()) == ["predictions.jsonl", "results.json"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("-b", "0"), "'0' is not a whole number from 1 on"),
        (("-b", "-3"), "'-3' is not a whole number from 1 on"),
        (("--max-tokens", "many"), "'many' is not a whole number"),
        (("--metrics", "bleu,meteor"), "no metric 'meteor'; there are exact_match, bleu, rouge"),
        (("--torch-dtype", "int8"), "invalid choice: 'int8'"),
        (("--batch", "4"), "unrecognized arguments: --batch 4"),
    ],
)
def test_wrong_options(
    words: tuple[str, ...], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        evaluate(tmp_path / "out", *words)
    assert caught.value.code == 2
    assert sentence in complaint(capsys)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("", "mine.jsonl"),
        ('{"question": "a", "answer": "b"}\n{"question": \n', "line 2"),
        ('{"question": "a"}\n', "line 1"),
        ('{"question": "a", "answer": "b", "image": "none.png"}\n', "none.png"),
    ],
)
def test_wrong_data(
    content: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "mine.jsonl"
    data.write_text(content)
    assert evaluate(tmp_path / "out", "-d", data) == 2
    assert sentence in complaint(capsys)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("workers", [0, 1])
def test_a_question_that_cannot_be_encoded_costs_no_answer(
    workers: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "mine.jsonl"
    asked = ["ab", "cd", UNREADABLE]
    data.write_text("".join(json.dumps({"question": each, "answer": "b"}) + "\n" for each in asked))
    assert evaluate(tmp_path, "-d", data, "-b", 1, "--num-workers", workers) == 2
    sentence = complaint(capsys)
    assert "question 3 cannot be encoded" in sentence
    assert sentence.endswith(f"; 2 of 3 answers are in {tmp_path}")
    assert len(read_predictions(tmp_path)) == read(tmp_path)["answered"] == 2


def test_a_model_on_disk_is_used_as_it_was_saved(tmp_path: Path) -> None:
    model = write_text_model(tmp_path / "model")
    words = ["-m", str(model), "--num-samples", "3", "--max-tokens", "4", "-b", "2"]
    settings = {}
    for dtype in ("auto", "bfloat16"):
        output = tmp_path / dtype
        assert main([*words, "-o", str(output), "--torch-dtype", dtype, "--device", "cpu"]) == 0
        assert read(output)["answered"] == 3
        settings[dtype] = read(output)["settings"]
    assert settings["auto"]["model"] == "model"
    assert settings["auto"]["dtype"] == "float32"
    assert settings["bfloat16"] == {**settings["auto"], "dtype": "bfloat16"}


@pytest.mark.parametrize(("dtype", "room"), [("float32", 100_000_000), ("bfloat16", 1_500_000_000)])
def test_no_room_for_a_model_on_disk(
    dtype: str,
    room: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = widen(write_text_model(tmp_path / "model"), rows=4_000_000)
    monkeypatch.setattr("diagnose.measure.evaluation.opening.guard", lambda *_: limit_memory(room))
    before = resource.getrlimit(resource.RLIMIT_AS)
    try:
        code = main(["-m", str(model), "-o", str(tmp_path / "out"), "--torch-dtype", dtype])
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    assert code == 3
    sentence = complaint(capsys)
    assert sentence.startswith(f"out of memory: the model in {model}, ")
    assert f" MB on disk, cannot be loaded as {dtype}: it needs " in sentence
    assert not (tmp_path / "out").exists()


def test_wrong_models_and_devices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ["-o", str(tmp_path / "out")]
    assert main(["-m", str(tmp_path / "none"), *out]) == 2
    assert "does not exist" in complaint(capsys)
    pickled = tmp_path / "pickled"
    pickled.mkdir()
    (pickled / "config.json").write_text('{"model_type": "qwen2"}')
    (pickled / "pytorch_model.bin").write_bytes(b"")
    assert main(["-m", str(pickled), *out]) == 2
    assert "pickled weights (pytorch_model.bin)" in complaint(capsys)
    assert main(["--device", "abacus", *out]) == 2
    assert "device 'abacus' is not available" in complaint(capsys)
    assert main(["--workload", "bert", *out]) == 2
    assert "bert writes no answers" in complaint(capsys)
    assert not (tmp_path / "out").exists()


def test_an_output_that_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.write_text("not a directory")
    assert evaluate(file / "out") == 3
    assert "was not written" in complaint(capsys)
    assert file.read_text() == "not a directory"


def test_several_processes_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert evaluate(tmp_path) == 2
    assert "profile_accuracy.py" in complaint(capsys)
