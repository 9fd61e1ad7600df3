"""What a run survives. Each test really does the thing: kill, stop, exhaust, fill, crash."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import pytest

from diagnose.measure.clock import SMOKE
from diagnose.measure.jobs import load
from diagnose.measure.machine.device import open_device
from diagnose.measure.stage import run_stage
from diagnose.measure.stages import STAGES
from diagnose.measure.stages.plan import Context
from diagnose.records.run import StageResult
from tests.support.cli import (
    FAULTY,
    ROOT,
    Outcome,
    command,
    diagnose_here,
    launch,
    private_mounts,
    read_record,
    reason,
    statuses,
)

LADDER = ("training", "loader")
SECRETS = {"SECRET_TOKEN": "hunter2hunter2", "NCCL_COMM_ID": "10.1.2.3:4567"}


def run_faulty(
    reports: Path, fault: str, *arguments: object, stages: tuple[str, ...] = LADDER
) -> Outcome:
    return diagnose_here(
        "run", "--workload", FAULTY, "--smoke", "--reports", reports, "--label", "faulty",
        "--stages", *stages, *arguments, FAULT=fault, **SECRETS,
    )  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The reports of a run that ended well, to be copied."""
    reports = tmp_path_factory.mktemp("finished")
    assert run_faulty(reports, "", stages=("inference",)).code == 0
    return reports


@pytest.mark.parametrize(
    ("fault", "status", "sentence"),
    [
        ("kill", "failed", "the measuring process was killed by SIGKILL"),
        ("stop", "hung", "no result after 20 s; the measuring process was killed"),
        ("file", "failed", "No such file or directory: 'weights.bin' (faulty.py:"),
        ("memory", "failed", "out of memory: "),
        ("nan", "invalid", "the loss is nan after"),
        ("loader", "failed", "DataLoader worker"),
        ("row", "failed", "in a loader worker: ValueError: row"),
    ],
)
def test_a_broken_stage_says_why_and_the_others_still_run(
    fault: str, status: str, sentence: str, tmp_path: Path
) -> None:
    hurt, well = ("loader", "inference") if fault in ("loader", "row") else LADDER
    limit = ("--timeout", 20) if fault == "stop" else ()
    outcome = run_faulty(tmp_path, fault, *limit, stages=(hurt, well))
    assert outcome.code == 3
    assert outcome.complaint.startswith(f"stage {hurt} {status}: ")
    assert sentence in outcome.complaint
    record = read_record(tmp_path, "faulty")
    assert statuses(record) == {hurt: status, well: "done"}
    assert sentence in reason(record, hurt)
    # A reason has no paths, and of a worker's traceback only the cause.
    assert "nowhere" not in (tmp_path / "faulty" / "report.md").read_text()
    assert_nothing_private(tmp_path / "faulty")


def assert_nothing_private(directory: Path) -> None:
    """No path or name of the machine, and nothing of its environment, is written."""
    written = "".join(path.read_text() for path in directory.iterdir() if path.is_file())
    names = ["hunter2", "10.1.2.3", os.uname().nodename, str(Path.home()), str(directory.parent)]
    assert [name for name in names if re.search(rf"\b{re.escape(name)}\b", written)] == []


def measure_here(fault: str, stage: str, monkeypatch: pytest.MonkeyPatch) -> StageResult:
    monkeypatch.setenv("FAULT", fault)
    job = load(str(ROOT / FAULTY))
    context = Context(open_device("cpu"), job, "only", job.sizes["only"], SMOKE, seed=0)
    return run_stage(next(each for each in STAGES if each.key == stage), context)


@pytest.mark.parametrize(
    ("fault", "stage", "sentence"),
    [
        ("no parameters", "training", "the model has no parameters to train"),
        ("few", "loader", "the dataset has 1 rows, fewer than one batch of 4"),
        ("stream", "loader", "IterableDataset"),
        ("stream", "real_data", "IterableDataset"),
    ],
)
def test_what_a_stage_cannot_use_skips_it(
    fault: str, stage: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = measure_here(fault, stage, monkeypatch)
    assert result.status == "skipped"
    assert sentence in result.reason


def test_a_loss_that_is_no_tensor_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    sentence = "the workload's loss returned a dict; it must return one tensor"
    with pytest.raises(TypeError, match=sentence):
        measure_here("dict", "training", monkeypatch)


def test_a_small_shared_memory_leaves_the_big_configurations_out(tmp_path: Path) -> None:
    words = command(
        "run", "--workload", FAULTY, "--smoke", "--reports", tmp_path, "--label", "faulty",
        "--stages", "loader",
    )  # fmt: skip
    outcome = launch(
        [*private_mounts("mount -t tmpfs -o size=48m tmpfs /dev/shm"), *words], {"FAULT": "shm"}
    )
    assert outcome.code == 0, outcome.err
    (stage,) = read_record(tmp_path, "faulty")["stages"]
    # a batch is 4 MiB; 2 x workers x prefetch 2 of them are 34 MB, 67 MB and 134 MB
    assert [m["settings"]["workers"] for m in stage["measurements"]] == [0, 2]
    left_out = [note for note in stage["notes"] if "/dev/shm has" in note]
    assert [note.split(" workers")[0] for note in left_out] == ["4", "8"]


def test_a_full_disk_keeps_the_old_file_and_prints_the_new(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    fill = "import sys; open(sys.argv[1] + '/ballast', 'wb').write(bytes(60 * 1024))"
    prefix = private_mounts(
        f'mount -t tmpfs -o size=64k tmpfs "{disk}"', f'python3 -c "{fill}" "{disk}"'
    )
    words = command(
        "run", "--workload", FAULTY, "--smoke", "--reports", disk, "--label", "full",
        "--stages", "inference",
    )  # fmt: skip
    outcome = launch([*prefix, *words], {})
    assert outcome.code == 3
    assert "the disk is full" in outcome.err.splitlines()[-1]
    rescued = json.loads(outcome.err[outcome.err.index("{") : outcome.err.rindex("}") + 1])
    assert statuses(rescued) == {"inference": "done"}


def test_a_damaged_earlier_result_is_put_aside(tmp_path: Path) -> None:
    directory = tmp_path / "faulty"
    directory.mkdir()
    (directory / "run.json").write_text('{"schema": 1, "label": "fau')
    outcome = run_faulty(tmp_path, "", stages=("inference",))
    assert outcome.code == 0
    assert "is not valid JSON" in outcome.complaint
    assert (directory / "run.json.corrupt").read_text() == '{"schema": 1, "label": "fau'
    assert statuses(read_record(tmp_path, "faulty")) == {"inference": "done"}


def test_another_schema_is_refused_when_rendering(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "faulty" / "run.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "header": {**record["header"], "schema": 99}}))
    for verb, code in (("report", 3), ("check", 1)):
        outcome = diagnose_here(verb, "--reports", tmp_path)
        assert outcome.code == code
        assert "newer" in outcome.err


def test_a_finished_run_is_kept_when_a_new_one_begins(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    first = (tmp_path / "faulty" / "run.json").read_bytes()
    run_faulty(tmp_path, "", stages=("training",))
    assert (tmp_path / "faulty" / "run.previous.json").read_bytes() == first
    assert statuses(read_record(tmp_path, "faulty")) == {"training": "done"}


def test_a_smoke_run_neither_replaces_a_report_nor_passes_the_check(tmp_path: Path) -> None:
    words = ("run", "--workload", FAULTY, "--smoke", "--stages", "inference")
    outcome = diagnose_here(*words, "--reports", tmp_path)
    assert outcome.code == 0
    assert outcome.out.startswith("Not a result: a smoke run")
    (directory,) = (each for each in tmp_path.iterdir() if each.is_dir())
    assert directory.name.endswith("faulty-inference-smoke")
    assert diagnose_here("check", "--reports", tmp_path).code == 1


def test_words_that_nobody_hears_cost_no_result(tmp_path: Path) -> None:
    words = command("run", "--workload", FAULTY, "--smoke", "--stages", "inference", "--label", "x")
    script = 'exec "$@" > /dev/full'
    outcome = launch(["sh", "-c", script, "sh", *words, "--reports", str(tmp_path)], {})
    assert outcome.code == 3
    assert "cannot write the output" in outcome.complaint
    assert statuses(read_record(tmp_path, "x")) == {"inference": "done"}


def test_what_a_workload_prints_is_not_taken_for_an_answer_and_a_gate_fails_on_doubt(
    tmp_path: Path,
) -> None:
    gated = run_faulty(tmp_path, "print", "--fail-on", "warning", "--json")
    assert json.loads(gated.out)["stages"] == dict.fromkeys(LADDER, "done")
    doubtful = [
        finding
        for finding in json.loads(gated.out)["findings"]
        if finding["severity"] != "info" or finding["verdict"] == "cannot tell"
    ]
    assert gated.code == (1 if doubtful else 0)
