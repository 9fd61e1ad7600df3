"""evaluate.py and profile_accuracy.py as their user meets them: killed, interrupted, resumed."""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from diagnose.commands import evaluate, profile_accuracy
from tests.support.alone_rank import run_here
from tests.support.cli import ROOT, Outcome, started
from tests.support.jobs.answers import COUNT, UNREADABLE
from tests.support.jobs.small import limit_memory
from tests.support.model_directories import widen, write_text_model
from tests.support.rank_jobs import finish, torchrun

JOB = ROOT / "tests" / "support" / "jobs" / "answers.py"
FAULTS = str(ROOT / "tests" / "support" / "answer_faults")
RIGHT = (COUNT + 1) // 2
WORDS = ["--workload", str(JOB), "--device", "cpu", "--batch_size", "4", "--timeout", "60"]
CAPS = [*WORDS, "--max_crops_list", "1", "3"]
BUILT_IN = ["--workload", "vqa", "--size", "tiny", "--num-samples", "4", "--batch-size", "2"]
BUILT_IN += ["--max-crops-list", "1", "4"]
BOTH = pytest.mark.parametrize("verb", [evaluate, profile_accuracy])


@pytest.fixture(autouse=True)
def modest(small_heap: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The guard limits a process's memory for good, and here that is pytest's own."""
    monkeypatch.setattr("diagnose.measure.evaluation.opening.guard", lambda *_: None)
    # How long torch waits for a loader process that was left in the middle of a batch.
    monkeypatch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 0.2)


def ask(directory: Path, *more: object) -> Outcome:
    """evaluate, here."""
    return run_here(evaluate, *WORDS, "-o", directory, *more)


def profile(output: Path, *more: object) -> Outcome:
    """profile_accuracy, here."""
    return run_here(profile_accuracy, *CAPS, "-o", output, *more)


def either(verb: ModuleType, folder: Path, *more: object) -> Outcome:
    return ask(folder / "out", *more) if verb is evaluate else profile(folder / "out.json", *more)


def read(path: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(path.read_text())
    return result


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def predictions(output: Path) -> dict[str, str]:
    folder = output.with_suffix(".predictions")
    return {path.name: path.read_text() for path in sorted(folder.iterdir())}


def counts(output: Path) -> list[tuple[Any, ...]]:
    """What may not depend on how many ranks there were."""
    names = ("max_crops", "accuracy", "std", "num_samples", "tiles_mean", "tokens_mean")
    return [tuple(row[name] for name in names) for row in read(output)["summary"]]


def test_a_built_in_model_answers_a_file_from_any_directory(tmp_path: Path) -> None:
    lines = [{"question": f"{n} 今天天气", "answer": "今天天气很好" * n} for n in (1, 2, 3)]
    (tmp_path / "mine.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    words = [sys.executable, str(ROOT / "diagnose" / "evaluate.py"), "-o", "here", "--device=cpu"]
    words += ["-d", "mine.jsonl", "-b", "2", "--size", "tiny", "--max_tokens", "9"]
    words += ["--torch_dtype", "float32", "--save_predictions"]
    done = finish(started(words, cwd=tmp_path))
    assert done.code == 0, done.err
    assert "3 of 3 samples, " in done.err
    assert "result: here/results.json" in done.out
    result = read(tmp_path / "here" / "results.json")
    assert result["complete"]
    assert (result["num_samples"], result["answered"]) == (3, 3)
    assert list(result["metrics"]) == ["exact_match", "bleu", "rouge1", "rouge2", "rougeL"]
    assert (result["batch_size"], result["batch_size_used"], result["fallbacks"]) == (2, 2, [])
    assert (result["settings"]["data"], result["settings"]["dtype"]) == ("mine.jsonl", "float32")
    found = read_lines(tmp_path / "here" / "predictions.jsonl")
    # Random weights end where the reference does, or at the longest answer allowed.
    assert [each["generated_tokens"] for each in found] == [6, 9, 9]
    assert [each["references"] for each in found] == [[each["answer"]] for each in lines]


def test_without_a_wish_predictions_do_not_stay(tmp_path: Path) -> None:
    assert ask(tmp_path).code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["results.json"]
    result = read(tmp_path / "results.json")
    assert result["metrics"]["exact_match"] == pytest.approx(RIGHT / COUNT)
    # One letter has no four words.
    assert result["metrics"]["bleu"] is None
    assert "4 words" in result["reasons"]["bleu"]


def test_fall_backs_are_told_and_counted_and_change_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ask(tmp_path / "free", "--save-predictions").code == 0
    monkeypatch.setenv("ANSWERS_LIMIT", "1")
    done = ask(tmp_path / "short", "-b", 8, "--save-predictions")
    assert done.code == 0
    for batch, then in ((8, "batches of 4"), (4, "batches of 2"), (2, "single samples")):
        sentence = f"batch of {batch} (it asked for 20.00 MiB more); going on with {then}"
        assert done.err.count(sentence) == 1
    short, free = (read_lines(tmp_path / name / "predictions.jsonl") for name in ("short", "free"))
    assert short == free
    result = read(tmp_path / "short" / "results.json")
    assert [each["batch"] for each in result["fallbacks"]] == [8, 4, 2]
    assert (result["batch_size"], result["batch_size_used"]) == (8, 1)


def test_a_real_lack_of_memory_falls_back(tmp_path: Path) -> None:
    """400 MB for a batch of 4 under a limit of 390 MB more than the process has."""
    words = [sys.executable, "-m", "diagnose", "evaluate", *WORDS, "-o", str(tmp_path)]
    limits = {"ANSWERS_BYTES": "100000000", "ANSWERS_ROOM": "390000000"}
    done = finish(started(words, limits))
    assert done.code == 0, done.err
    assert "batch of 4 (it asked for 400000000 bytes more); going on with batches of 2" in done.err
    assert read(tmp_path / "results.json")["batch_size_used"] == 2


def test_ctrl_c_keeps_what_was_answered_and_resume_asks_for_the_rest(tmp_path: Path) -> None:
    words = [sys.executable, str(ROOT / "diagnose" / "evaluate.py"), *WORDS, "-b", "2"]
    part = tmp_path / "results.parts" / "all" / "rank-0.jsonl"
    with started([*words, "-o", str(tmp_path)], {"ANSWERS_SLEEP": "er 1"}) as job:
        job.wait_until(lambda: part.exists() and part.read_text().count('"index"') == 4)
        done = job.interrupt()
    assert (done.code, done.left) == (130, ())
    assert done.complaint == f"interrupted; 4 of {COUNT} answers are in {tmp_path}"
    result = read(tmp_path / "results.json")
    assert (result["complete"], result["answered"]) == (False, 4)
    assert result["metrics"]["exact_match"] == 0.5
    assert len(read_lines(tmp_path / "predictions.jsonl")) == 4

    other = ask(tmp_path, "--resume", "--max-tokens", 2)
    assert other.code == 2
    assert "was made with max_new_tokens 256, not 2" in other.complaint
    assert ask(tmp_path, "--resume", "--save-predictions").code == 0
    assert ask(tmp_path / "free", "--save-predictions").code == 0
    resumed, free = (read_lines(f / "predictions.jsonl") for f in (tmp_path, tmp_path / "free"))
    assert resumed == free
    assert not part.exists()
    assert "is complete" in ask(tmp_path, "--resume").complaint


def test_a_model_on_disk_is_used_as_it_was_saved(tmp_path: Path) -> None:
    model = write_text_model(tmp_path / "model")
    words = ["-m", model, "--workload", "textgen", "--num-samples", 3, "--max-tokens", 4, "-b", 2]
    settings = {}
    for dtype in ("auto", "bfloat16"):
        assert ask(tmp_path / dtype, *words, "--torch-dtype", dtype).code == 0
        result = read(tmp_path / dtype / "results.json")
        assert result["answered"] == 3
        settings[dtype] = result["settings"]
    assert (settings["auto"]["model"], settings["auto"]["dtype"]) == ("model", "float32")
    assert settings["bfloat16"] == {**settings["auto"], "dtype": "bfloat16"}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One process, from another directory."""
    folder = tmp_path_factory.mktemp("alone")
    words = [sys.executable, str(ROOT / "diagnose" / "profile_accuracy.py"), *CAPS, "-o"]
    done = finish(started([*words, "vqa.json"], cwd=folder))
    assert done.code == 0, done.err
    assert done.left == ()
    assert f"max_crops 3: {COUNT} of {COUNT} samples, " in done.err
    return folder / "vqa.json"


def test_the_result_has_a_row_for_every_max_crops(alone: Path) -> None:
    result = read(alone)
    assert result["complete"]
    assert [row["max_crops"] for row in result["summary"]] == result["planned"] == [1, 3]
    for row in result["summary"]:
        assert row["accuracy"] == pytest.approx(RIGHT / COUNT)
        assert (row["num_samples"], row["fallbacks"], row["batch_size_used"]) == (COUNT, 0, 4)
        assert row["duration"] > 0
    # A cap of 3 allows more tiles than one of 1.
    assert [row["tiles_mean"] for row in result["summary"]] == [1.0, 3.0]
    lines = [json.loads(line) for line in predictions(alone)["max_crops-3.jsonl"].splitlines()]
    assert [line["index"] for line in lines] == list(range(COUNT))
    assert sum(line["accuracy"] for line in lines) == RIGHT
    assert sorted(path.name for path in alone.parent.iterdir()) == ["vqa.json", "vqa.predictions"]


def test_two_ranks_are_one_rank_and_a_killed_one_is_resumed(alone: Path, tmp_path: Path) -> None:
    output = tmp_path / "vqa.json"
    # The first barrier is that of the start; one follows before each merge.
    words = [*CAPS, "--output", output]
    job = finish(
        torchrun("profile_accuracy.py", *words, extra={"KILL": "1 3", "PYTHONPATH": FAULTS})
    )
    assert job.complaint == (
        "rank 1 was killed by SIGKILL during the merge of max_crops 3; "
        f"1 of 2 max_crops are in {output}; go on with --resume"
    )
    assert "exitcode  : 3" in job.err
    assert job.left == ()
    assert not read(output)["complete"]
    # What two ranks have merged is what one has.
    assert counts(output) == counts(alone)[:1]
    assert predictions(output).items() <= predictions(alone).items()
    parts = tmp_path / "vqa.parts" / "max_crops-3"
    answered = [(parts / f"rank-{rank}.jsonl").read_text() for rank in (0, 1)]
    assert [text.count('"index"') for text in answered] == [6, 5]
    before = read(output)["summary"][0]

    # As if it had been killed while it wrote its last line.
    (parts / "rank-1.jsonl").write_text(answered[1][:-20])
    assert profile(output, "--resume").code == 0
    assert read(output)["complete"]
    assert read(output)["summary"][0] == before, "a finished max_crops is not evaluated twice"
    assert counts(output) == counts(alone)
    assert predictions(output) == predictions(alone)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["vqa.json", "vqa.predictions"]


def test_ctrl_c_under_torchrun_and_two_ranks_of_the_built_in_model(tmp_path: Path) -> None:
    output, single = tmp_path / "vqa.json", tmp_path / "single.json"
    words = [*CAPS, "--output", output, *BUILT_IN]
    # Rank 1 never comes to the merge of the second max_crops.
    with torchrun(
        "profile_accuracy.py", *words, extra={"STALL": "1 3", "PYTHONPATH": FAULTS}
    ) as running:
        running.wait_until((tmp_path / "vqa.parts" / "max_crops-4" / "rank-1.finished").exists)
        job = running.interrupt()
    assert job.code != 0
    assert job.left == ()
    assert job.complaint == f"interrupted; 1 of 2 max_crops are in {output}; go on with --resume"
    assert not read(output)["complete"]
    assert profile(single, *BUILT_IN, "--batch-size", 1).code == 0
    assert counts(output) == counts(single)[:1]
    # All answers are there: one process has only to merge what two ranks have left.
    assert profile(output, "--resume", *BUILT_IN).code == 0
    assert read(output)["complete"]
    assert counts(output) == counts(single)
    assert predictions(output) == predictions(single), "batches have the answers of single samples"
    few, many = read(output)["summary"]
    assert few["tiles_mean"] == 1.0
    assert many["tokens_mean"] > few["tokens_mean"]


@pytest.mark.parametrize(
    ("words", "used"),
    [
        ((), 5),  # 2, 4, then what is left
        (("--max-attempts", "1"), 4),
        (("--no-auto-adjust-batch-size",), 5),
    ],
)
def test_the_batch_begins_where_the_rule_says_and_grows(
    words: tuple[str, ...], used: int, tmp_path: Path
) -> None:
    """At max_crops 13 the rule takes 0.4 of the base batch."""
    output = tmp_path / "vqa.json"
    assert profile(output, "--max-crops-list", "13", "--batch-size", "5", *words).code == 0
    assert read(output)["summary"][0]["batch_size_used"] == used


def test_a_result_is_never_overwritten_and_only_resumed_with_its_settings(tmp_path: Path) -> None:
    output = tmp_path / "vqa.json"
    assert profile(output).code == 0
    before = output.read_text()
    for words, sentence in (
        ((), "already holds 2 of 2 max_crops; go on with --resume"),
        (("--resume", "--max-tokens", "2"), "was made with max_new_tokens 16, not 2"),
        (("--resume", "--num-samples", "4"), f"was made with num_samples {COUNT}, not 4"),
    ):
        done = profile(output, *words)
        assert done.code == 2
        assert sentence in done.complaint
        assert output.read_text() == before
    # Another max_crops is no other setting.
    assert profile(output, "--resume", "--max-crops-list", "2", "3").code == 0
    assert [row["max_crops"] for row in read(output)["summary"]] == [1, 3, 2]
    assert read(output)["summary"][:2] == json.loads(before)["summary"]
    output.write_text('{"chapter": 1}')
    assert "is not a result of this script" in profile(output, "--resume").complaint
    assert output.read_text() == '{"chapter": 1}'


@BOTH
def test_no_room_for_a_single_sample(
    verb: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANSWERS_LIMIT", "0")
    done = either(verb, tmp_path, "-b", 2)
    assert done.code == 3
    assert done.complaint.startswith("ran out of memory (question '0' does not fit even alone")
    assert "need 20.00 MiB more" in done.complaint
    assert "; 0 of " in done.complaint
    if verb is evaluate:
        # What was told on the way is kept, though no answer came of it.
        result = read(tmp_path / "out" / "results.json")
        assert result["complete"] is False
        assert [(each["batch"], each["next_batch"]) for each in result["fallbacks"]] == [(2, 1)]
    monkeypatch.delenv("ANSWERS_LIMIT")
    assert either(verb, tmp_path, "--resume").code == 0


@pytest.mark.parametrize(("dtype", "room"), [("float32", 100_000_000), ("bfloat16", 1_500_000_000)])
def test_no_room_for_a_model_on_disk(
    dtype: str, room: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = widen(write_text_model(tmp_path / "model"), rows=4_000_000)
    monkeypatch.setattr("diagnose.measure.evaluation.opening.guard", lambda *_: limit_memory(room))
    before = resource.getrlimit(resource.RLIMIT_AS)
    try:
        done = ask(tmp_path / "out", "--workload", "textgen", "-m", model, "--torch-dtype", dtype)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    assert done.code == 3
    assert done.complaint.startswith("ran out of memory (the model in model, ")
    assert f" MB on disk, cannot be loaded as {dtype}: it needs " in done.complaint
    assert not list(tmp_path.glob("out*"))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_question_that_cannot_be_encoded_costs_no_answer(workers: int, tmp_path: Path) -> None:
    data = tmp_path / "mine.jsonl"
    asked = ["ab", "cd", UNREADABLE]
    data.write_text("".join(json.dumps({"question": each, "answer": "b"}) + "\n" for each in asked))
    done = ask(tmp_path / "out", "-d", data, "-b", 1, "--num-workers", workers)
    assert done.code == 2
    assert "question 3 cannot be encoded" in done.complaint
    assert done.complaint.endswith(f"; 2 of 3 answers are in {tmp_path / 'out'}")
    assert len(read_lines(tmp_path / "out" / "predictions.jsonl")) == 2


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("-b", "0"), "'0' is not a whole number of 1 or more"),
        (("--batch_size=-1",), "'-1' is not a whole number of 1 or more"),
        (("--max-tokens", "many"), "'many' is not a whole number"),
        (("--torch-dtype", "int8"), "invalid choice: 'int8'"),
        (("--batch", "4"), "unrecognized arguments: --batch 4"),
        (("-m", "/nowhere", "--workload", "textgen"), "does not exist"),
        (("--device", "abacus"), "device 'abacus' is not available"),
        (("--workload", "bert"), "bert writes no answers"),
    ],
)
@BOTH
def test_wrong_options(
    verb: ModuleType, words: tuple[str, ...], sentence: str, tmp_path: Path
) -> None:
    done = either(verb, tmp_path, *words)
    assert done.code == 2
    assert sentence in done.complaint
    assert not list(tmp_path.glob("out*"))


def test_what_else_is_refused(tmp_path: Path) -> None:
    assert "no metric 'meteor'; there are" in ask(tmp_path / "out", "--metrics", "meteor").complaint
    assert "'x' does not end in .json" in profile(Path("x")).complaint
    out = tmp_path / "out.json"
    assert "no max_crops is left" in profile(out, "--start-from-max-crops", 4).complaint
    assert "has no max_crops" in profile(out, "--workload", "textgen", "--size", "tiny").complaint
    assert not list(tmp_path.glob("out*"))
    (tmp_path / "config.json").write_text('{"model_type": "qwen2"}')
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    done = ask(tmp_path / "out", "--workload", "textgen", "-m", tmp_path)
    assert "pickled weights (pytorch_model.bin)" in done.complaint
    done = ask(tmp_path / "config.json" / "out")
    assert done.code == 3
    assert "was not written" in done.complaint


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("", "mine.jsonl"),
        ('{"question": "a", "answer": "b"}\n{"question": \n', "line 2"),
        ('{"question": "a"}\n', "line 1"),
        ('{"question": "a", "answer": "b", "image": "none.png"}\n', "none.png"),
    ],
)
def test_wrong_data(content: str, sentence: str, tmp_path: Path) -> None:
    data = tmp_path / "mine.jsonl"
    data.write_text(content)
    done = ask(tmp_path / "out", "-d", data)
    assert done.code == 2
    assert sentence in done.complaint
    assert not list(tmp_path.glob("out*"))
