"""profile_accuracy.py as its user meets it: one rank, two, killed, interrupted, resumed."""

from __future__ import annotations

import json
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from diagnose.commands.profile_accuracy import build_parser, lead, main
from diagnose.measure.evaluation import ranks as accuracy
from diagnose.measure.machine.device import Device
from diagnose.measure.ranks.job.ends import End, Outcome
from diagnose.measure.ranks.job.member import Member, describe_error
from diagnose.measure.ranks.job.supervise import OnLine
from tests.support.cli import ROOT
from tests.support.jobs.answers import COUNT
from tests.support.jobs.small import limit_memory
from tests.support.model_directories import widen, write_text_model
from tests.support.rank_jobs import Job, Started, finish, start

SCRIPT = ROOT / "diagnose" / "profile_accuracy.py"
JOB = ROOT / "tests" / "support" / "jobs" / "answers.py"
FAULTS = ROOT / "tests" / "support" / "answer_faults"
RIGHT = (COUNT + 1) // 2
# Python's own words in the order of the brief of the field report: with underscores.
WORDS = ["--workload", str(JOB), "--device", "cpu", "--max_crops_list", "1", "3"]
WORDS += ["--batch_size", "4", "--timeout", "60"]
BUILT_IN = ["--workload", "vqa", "--size", "tiny", "--num-samples", "4", "--batch-size", "2"]
BUILT_IN += ["--max-crops-list", "1", "4"]


@pytest.fixture(autouse=True)
def modest(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The guard limits a process's memory for good, and here that is pytest's own."""
    monkeypatch.setattr("diagnose.measure.evaluation.opening.guard", lambda *_: None)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # such small models only wait for a second one
    yield
    torch.set_num_threads(threads)


def run_alone(output: Path, *more: str, cwd: Path = ROOT, **extra: str) -> Job:
    words = [sys.executable, str(SCRIPT), *WORDS, "--output", str(output), *more]
    return finish(start(words, extra, cwd=cwd), output.parent)


def torchrun(output: Path, *more: str, **extra: str) -> Started:
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    words += [str(SCRIPT), *WORDS, "--output", str(output), *more]
    return start(words, {"PYTHONPATH": FAULTS, **extra})


def wait_until(is_so: Callable[[], object]) -> None:
    deadline = time.monotonic() + 120
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def read(output: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(output.read_text())
    return result


def predictions(output: Path) -> dict[str, str]:
    folder = output.with_suffix(".predictions")
    return {path.name: path.read_text() for path in sorted(folder.iterdir())}


def counts(output: Path) -> list[tuple[Any, ...]]:
    """What may not depend on how many ranks there were."""
    names = ("max_crops", "accuracy", "std", "num_samples", "tiles_mean", "tokens_mean")
    return [tuple(row[name] for name in names) for row in read(output)["summary"]]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One process, from another directory."""
    folder = tmp_path_factory.mktemp("alone")
    job = run_alone(Path("vqa.json"), cwd=folder)
    assert job.code == 0, job.err
    assert job.left == []
    assert "max_crops 1: accuracy 0.5455" in job.out
    assert f"max_crops 3: {COUNT} of {COUNT} samples, " in job.err
    return folder / "vqa.json"


def test_the_result_has_a_row_for_every_max_crops(alone: Path) -> None:
    result = read(alone)
    assert result["complete"]
    assert [row["max_crops"] for row in result["summary"]] == result["planned"] == [1, 3]
    for row in result["summary"]:
        assert row["accuracy"] == pytest.approx(RIGHT / COUNT)
        assert row["num_samples"] == COUNT
        assert row["duration"] > 0
        assert row["fallbacks"] == 0
        assert row["batch_size_used"] == 4
        assert row["generated_tokens_mean"] == 1.0
    # A cap of 3 allows more tiles than one of 1.
    assert [row["tiles_mean"] for row in result["summary"]] == [1.0, 3.0]
    lines = [json.loads(line) for line in predictions(alone)["max_crops-3.jsonl"].splitlines()]
    assert [line["index"] for line in lines] == list(range(COUNT))
    assert sum(line["accuracy"] for line in lines) == RIGHT
    assert sorted(path.name for path in alone.parent.iterdir()) == ["vqa.json", "vqa.predictions"]


def test_two_ranks_are_one_rank_and_a_killed_one_is_resumed(alone: Path, tmp_path: Path) -> None:
    output = tmp_path / "vqa.json"
    # The first barrier is that of the start; one follows before each merge.
    job = finish(torchrun(output, KILL="1 3"), tmp_path)
    assert job.complaints == [
        "rank 1 was killed by SIGKILL during the merge of max_crops 3; "
        f"1 of 2 max_crops are in {output}; go on with --resume"
    ]
    assert "exitcode  : 3" in job.err
    assert job.left == []
    assert not read(output)["complete"]
    # What two ranks have merged is what one has.
    assert counts(output) == counts(alone)[:1]
    assert predictions(output) == {
        name: text for name, text in predictions(alone).items() if "-1." in name
    }
    parts = tmp_path / "vqa.parts" / "max_crops-3"
    answered = [(parts / f"rank-{rank}.jsonl").read_text() for rank in (0, 1)]
    assert [text.count('"index"') for text in answered] == [6, 5]
    before = read(output)["summary"][0]

    # As if it had been killed while it wrote its last line.
    (parts / "rank-1.jsonl").write_text(answered[1][:-20])
    assert evaluate(output, "--resume") == 0
    assert read(output)["complete"]
    assert read(output)["summary"][0] == before, "a finished max_crops is not evaluated twice"
    assert counts(output) == counts(alone)
    assert predictions(output) == predictions(alone)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["vqa.json", "vqa.predictions"]


def test_ctrl_c_leaves_a_valid_summary(alone: Path, tmp_path: Path) -> None:
    output = tmp_path / "vqa.json"
    words = [sys.executable, str(SCRIPT), *WORDS, "--output", str(output)]
    # The fifth question, when it is asked for the second max_crops.
    started = start(words, {"ANSWERS_SLEEP": "er 2"})
    part = tmp_path / "vqa.parts" / "max_crops-3" / "rank-0.jsonl"
    wait_until(lambda: part.exists() and part.read_text() and read(output)["summary"])
    started.process.send_signal(signal.SIGINT)
    job = finish(started, tmp_path)
    assert job.code == 130
    assert job.left == []
    assert job.complaints == [f"interrupted; 1 of 2 max_crops are in {output}; go on with --resume"]
    assert counts(output) == counts(alone)[:1]
    assert evaluate(output, "--resume") == 0
    assert counts(output) == counts(alone)
    assert predictions(output) == predictions(alone)


def test_ctrl_c_under_torchrun_and_two_ranks_of_the_built_in_model(tmp_path: Path) -> None:
    output, single = tmp_path / "vqa.json", tmp_path / "single.json"
    # Rank 1 never comes to the merge of the second max_crops.
    started = torchrun(output, *BUILT_IN, STALL="1 3")
    wait_until((tmp_path / "vqa.parts" / "max_crops-4" / "rank-1.finished").exists)
    started.process.send_signal(signal.SIGINT)
    job = finish(started, tmp_path)
    assert job.code != 0
    assert job.left == []
    assert job.complaints == [f"interrupted; 1 of 2 max_crops are in {output}; go on with --resume"]
    assert not read(output)["complete"]
    assert evaluate(single, *BUILT_IN) == 0
    assert counts(output) == counts(single)[:1]
    parts = tmp_path / "vqa.parts" / "max_crops-4"
    answered = [(parts / f"rank-{rank}.jsonl").read_text() for rank in (0, 1)]
    assert [text.count('"index"') for text in answered] == [2, 2]

    # All answers are there: one process has only to merge what two ranks have left.
    assert evaluate(output, "--resume", *BUILT_IN) == 0
    assert read(output)["complete"]
    assert counts(output) == counts(single)
    assert predictions(output) == predictions(single)


# --- the same lines in this process, with a rank that has no others ---


class Alone:
    """What a program sees of its rank, where that is the only one."""

    rank = local_rank = node = 0
    world_size = local_world_size = nodes = 1
    timeout_seconds = 60.0

    def __init__(self, on_line: OnLine) -> None:
        self.device = Device("cpu")
        self.where = "start"
        self._on_line = on_line

    def at(self, text: str) -> None:
        self.where = text

    def still(self) -> None: ...

    def emit(self, kind: str, content: object) -> None:
        self._on_line(kind, json.loads(json.dumps(content)))

    def barrier(self) -> None: ...

    def broadcast(self, value: Any) -> Any:
        return value


def launch(program: str, request: Mapping[str, Any], on_line: OnLine, timeout: float) -> Outcome:
    member = Alone(on_line)
    try:
        accuracy.run(cast(Member, member), json.loads(json.dumps(request)))
    except Exception as error:
        kind, reason = describe_error(error, timeout)
        return Outcome((End(0, kind, reason, member.where),))
    return Outcome((End(0, "done"),))


def evaluate(output: Path, *more: str) -> int:
    words = [word.replace("_", "-") if word.startswith("--") else word for word in WORDS]
    arguments = build_parser().parse_args([*words, "--output", str(output), *more])
    return lead(arguments, launch)


def complaint(capsys: pytest.CaptureFixture[str]) -> str:
    err = capsys.readouterr().err
    (line,) = [line for line in err.splitlines() if line.startswith("diagnose: ")]
    return line.removeprefix("diagnose: ")


def test_memory_falls_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate(tmp_path / "free.json") == 0
    monkeypatch.setenv("ANSWERS_LIMIT", "3")
    assert evaluate(tmp_path / "short.json", "--no-auto-adjust-batch-size") == 0
    assert "rank 0, max_crops 1: out of memory with a batch of 4" in capsys.readouterr().err
    assert predictions(tmp_path / "short.json") == predictions(tmp_path / "free.json")
    for row in read(tmp_path / "short.json")["summary"]:
        assert row["fallbacks"] == len(row["fallback_log"]) == 1
        assert row["fallback_log"][0]["fallback"]["next_batch"] == 2
        assert row["batch_size_used"] == 2


def test_the_batch_begins_where_the_rule_says_and_grows(tmp_path: Path) -> None:
    """At max_crops 13 the rule takes 0.4 of the base batch."""
    words = ("--max-crops-list", "13", "--batch-size", "5")
    assert evaluate(tmp_path / "grown.json", *words) == 0
    assert evaluate(tmp_path / "never.json", *words, "--max-attempts", "1") == 0
    assert evaluate(tmp_path / "fixed.json", *words, "--no-auto-adjust-batch-size") == 0
    used = {
        name: read(tmp_path / f"{name}.json")["summary"][0]["batch_size_used"]
        for name in ("grown", "never", "fixed")
    }
    # 2, 4, then what is left: 5; 2 and one attempt at 4; always 5.
    assert used == {"grown": 5, "never": 4, "fixed": 5}


def test_no_room_for_a_single_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "vqa.json"
    monkeypatch.setenv("ANSWERS_LIMIT", "0")
    assert evaluate(output) == 3
    sentence = complaint(capsys)
    assert sentence.startswith("rank 0 ran out of memory (question '0' does not fit even alone")
    assert f"0 of 2 max_crops are in {output}" in sentence
    monkeypatch.delenv("ANSWERS_LIMIT")
    assert evaluate(output) == 2
    assert "already holds 0 of 2 max_crops; go on with --resume" in complaint(capsys)
    assert evaluate(output, "--resume") == 0
    done = output.read_text()
    assert len(read(output)["summary"]) == 2
    assert evaluate(output) == 2
    assert "already holds 2 of 2 max_crops" in complaint(capsys)
    assert output.read_text() == done


def test_no_room_for_a_model_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = widen(write_text_model(tmp_path / "model"), rows=4_000_000)
    monkeypatch.setattr(
        "diagnose.measure.evaluation.opening.guard", lambda *_: limit_memory(100_000_000)
    )
    before = resource.getrlimit(resource.RLIMIT_AS)
    try:
        code = evaluate(tmp_path / "vqa.json", "--workload", "textgen", "--model", str(model))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    assert code == 3
    sentence = complaint(capsys)
    assert sentence.startswith(f"rank 0 ran out of memory (the model in {model.name}, ")
    assert sentence.endswith(" during the loading of the model")
    assert not (tmp_path / "vqa.json").exists()


def test_a_result_of_other_settings_is_not_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "vqa.json"
    assert evaluate(output) == 0
    before = output.read_text()
    for words, sentence in (
        (("--max-tokens", "2"), "was made with max_new_tokens 16, not 2"),
        (("--num-samples", "4"), f"was made with num_samples {COUNT}, not 4"),
        (("--torch-dtype", "bfloat16"), "was made with dtype float32, not bfloat16"),
    ):
        assert evaluate(output, "--resume", *words) == 2
        assert sentence in complaint(capsys)
        assert output.read_text() == before
    # Another max_crops is no other setting.
    assert evaluate(output, "--resume", "--max-crops-list", "3", "2") == 0
    assert [row["max_crops"] for row in read(output)["summary"]] == [1, 3, 2]
    assert read(output)["summary"][:2] == json.loads(before)["summary"]


def test_another_file_is_not_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "thesis.json"
    output.write_text('{"chapter": 1}')
    assert evaluate(output) == 2
    assert "is no result of this script" in complaint(capsys)
    assert output.read_text() == '{"chapter": 1}'
    assert list(tmp_path.iterdir()) == [output]


def test_a_picture_that_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "mine.jsonl"
    data.write_text('{"question": "a", "answer": "b", "image": "none.png"}\n')
    assert evaluate(tmp_path / "vqa.json", "--data", str(data)) == 2
    sentence = complaint(capsys)
    assert "line 1" in sentence
    assert "none.png" in sentence
    assert not (tmp_path / "vqa.json").exists()


def test_the_built_in_model_looks_at_pictures(tmp_path: Path) -> None:
    output = tmp_path / "vqa.json"
    assert evaluate(output, *BUILT_IN) == 0
    assert evaluate(tmp_path / "single.json", *BUILT_IN, "--batch-size", "1") == 0
    assert predictions(output) == predictions(tmp_path / "single.json")
    few, many = read(output)["summary"]
    assert few["tiles_mean"] == 1.0
    assert many["tiles_mean"] > 1.0
    assert many["tokens_mean"] > few["tokens_mean"]
    assert few["num_samples"] == many["num_samples"] == 4


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--max_crops_list", "0"), "'0' is not a whole number from 1 on"),
        (("--batch_size", "0"), "'0' is not a whole number from 1 on"),
        (("--batch-size=-1",), "'-1' is not a whole number from 1 on"),
        (("--output", "result"), "'result' does not end in .json"),
    ],
)
def test_wrong_options(
    words: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2
    assert sentence in complaint(capsys)


def test_max_crops_that_cannot_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate(tmp_path / "vqa.json", "--start-from-max-crops", "4") == 2
    assert "no max_crops is left" in complaint(capsys)
    assert evaluate(tmp_path / "vqa.json", "--workload", "textgen", "--size", "tiny") == 2
    assert "workload textgen has no max_crops" in complaint(capsys)
