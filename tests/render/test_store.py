"""Does a record survive what happens to files?"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from diagnose.records import codec
from diagnose.records.header import SCHEMA
from diagnose.records.run import RunRecord
from diagnose.render import check, store
from diagnose.render.store import StoreError
from tests.support.records.run import run_record
from tests.support.rendered import rendered

SMALL = run_record(
    without=["ceilings", "training", "precision", "loader", "real_data", "full_model"]
)


def changed(path: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """The small record as JSON with one thing altered."""
    data = json.loads(codec.dumps(SMALL))
    change(data)
    path.write_text(json.dumps(data))
    return path


def clock_of(data: dict[str, Any]) -> dict[str, Any]:
    clock: dict[str, Any] = data["stages"][0]["measurements"][0]["timing"]
    return clock


def test_what_was_saved_is_loaded_and_found_in_order(tmp_path: Path) -> None:
    path = store.save(run_record(), tmp_path / "b")
    assert store.load(path, RunRecord) == run_record()
    assert [each.name for each in path.parent.iterdir()] == ["run.json"]
    store.save(SMALL, tmp_path / "a")
    (tmp_path / "README.md").write_text("")
    assert [each.parent.name for each in store.find_records(tmp_path)] == ["a", "b"]
    assert store.find_records(tmp_path / "nowhere") == []


def test_a_number_that_is_not_finite_costs_nothing(tmp_path: Path) -> None:
    store.save(SMALL, tmp_path)
    broken = replace(
        SMALL, stages=(replace(SMALL.stages[0], seconds=float("nan")), *SMALL.stages[1:])
    )
    with pytest.raises(StoreError, match="cannot be stored"):
        store.save(broken, tmp_path)
    assert store.load(tmp_path / "run.json", RunRecord) == SMALL
    assert [each.name for each in tmp_path.iterdir()] == ["run.json"]


def test_a_reader_never_sees_half_of_a_file(tmp_path: Path) -> None:
    path = store.save(SMALL, tmp_path)
    with path.open("rb") as reader:
        store.save(replace(SMALL, header=replace(SMALL.header, seed=8)), tmp_path)
        # Whoever opened the old file before still reads the whole of it.
        assert reader.read() == codec.dumps(SMALL)
    assert store.load(path, RunRecord).header.seed == 8


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB, where this machine lets us mount one."""
    where = tmp_path / "small"
    where.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(where)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount a small file system: {mounted.stderr.strip()}")
    yield where
    subprocess.run(["umount", str(where)], check=True, timeout=30)


def test_a_full_disk_keeps_the_old_file(full_disk: Path) -> None:
    path = store.save(SMALL, full_disk)
    large = replace(SMALL, header=replace(SMALL.header, tool_version="x" * 2**21))
    with pytest.raises(StoreError, match="the disk is full"):
        store.save(large, full_disk)
    assert store.load(path, RunRecord) == SMALL
    assert [each.name for each in full_disk.iterdir()] == ["run.json"]


def test_a_file_where_a_directory_should_be_is_an_error_of_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "label").write_text("")
    with pytest.raises(StoreError, match="was not written"):
        store.save(SMALL, tmp_path / "label")
    with pytest.raises(StoreError, match="was not written"), store.label_lock(tmp_path / "label"):
        pass


def test_a_cut_file_is_never_a_traceback(tmp_path: Path) -> None:
    content = codec.dumps(SMALL)
    path = tmp_path / "run.json"
    for length in [*range(40), *range(40, len(content) - 1, len(content) // 150)]:
        path.write_bytes(content[:length])
        with pytest.raises(StoreError, match=r"run\.json"):
            store.load(path, RunRecord)


def test_a_flipped_bit_is_refused_or_harmless(tmp_path: Path) -> None:
    content = codec.dumps(SMALL)
    path = tmp_path / "run.json"
    dice = random.Random(11)
    refused: list[str] = []
    loaded = 0
    for _ in range(250):
        damaged = bytearray(content)
        damaged[dice.randrange(len(damaged))] ^= 1 << dice.randrange(8)
        path.write_bytes(damaged)
        try:
            record = store.load(path, RunRecord)
        except StoreError as error:
            refused.append(str(error))
        else:
            # Whatever still loads is a record like any other: it can be told.
            rendered(record).encode()
            loaded += 1
    assert len(refused) > 20
    assert all("run.json" in error and "\n" not in error for error in refused)
    assert loaded > 20


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "not valid JSON"),
        (b"\xff\xfe{}", "not valid JSON"),
        (b"[" * 200_000, "nested too deeply"),
        (b'{"a":' * 200_000, "nested too deeply"),
        (b"[]", "no schema number"),
        (b"null", "no schema number"),
        (b'{"schema": true}', "no schema number"),
        (b'{"schema": 1.0}', "no schema number"),
        (b'{"schema": ' + b"9" * 5000 + b"}", "not valid JSON"),
        (b'{"schema": 1}', "older"),
        (b'{"header": {"schema": 2}}', "damaged"),
    ],
)
def test_what_is_no_record_is_refused(tmp_path: Path, content: bytes, complaint: str) -> None:
    path = tmp_path / "run.json"
    path.write_bytes(content)
    with pytest.raises(StoreError, match=complaint) as caught:
        store.load(path, RunRecord)
    assert str(path) in str(caught.value)


def test_a_huge_file_is_not_even_parsed_and_a_missing_one_said_so(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    with path.open("wb") as file:
        file.truncate(store.LARGEST_FILE_BYTES + 1)
    with pytest.raises(StoreError, match="over 64 MiB"):
        store.load(path, RunRecord)
    with pytest.raises(StoreError, match="cannot be read: No such file"):
        store.load(tmp_path / "none.json", RunRecord)


@pytest.mark.parametrize(
    "change",
    [
        lambda data: clock_of(data).update(steps_per_slot=0),
        lambda data: clock_of(data).update(slot_seconds=[], slot_starts=[]),
        lambda data: clock_of(data).update(slot_starts=[1.0]),
        lambda data: clock_of(data)["slot_seconds"].__setitem__(0, -1.0),
        lambda data: clock_of(data)["slot_seconds"].__setitem__(0, 1e30),
        lambda data: clock_of(data).update(slot_seconds=[1.0] * 9999, slot_starts=[1.0] * 9999),
        lambda data: data["stages"][0]["measurements"][0].update(samples_per_step=0),
        lambda data: data["stages"][0]["measurements"][0]["gpus"][0].update(gpu=7),
        lambda data: data["stages"][0]["measurements"][0]["settings"].update(batch_size=10**30),
        lambda data: data["stages"][0].update(seconds=float("nan")),
        lambda data: data["stages"][0].update(status="broken"),
        lambda data: data["stages"][0].update(status="failed"),
        lambda data: data["stages"][0].update(title="\ud800"),
        lambda data: data["workload"]["data"].update(padding_share=1.5),
        lambda data: data["header"]["machine"]["links"].append(
            {"first": 0, "second": 4, "kind": {"value": "SYS"}, "peer_to_peer": {"value": "ok"}}
        ),
        lambda data: data["header"].update(label="../../etc"),
        lambda data: data["header"].update(seed="7"),
    ],
)
def test_what_cannot_have_been_measured_is_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], object]
) -> None:
    with pytest.raises(StoreError, match="damaged"):
        store.load(changed(tmp_path / "run.json", change), RunRecord)


@pytest.mark.parametrize(
    ("schema", "complaint"),
    [
        (0, r"older version '0\.0\.9' \(schema 0\).*measure again"),
        (SCHEMA + 1, r"newer version .* update this tool"),
    ],
)
def test_another_schema_names_its_writer_and_the_way_out(
    tmp_path: Path, schema: int, complaint: str
) -> None:
    def change(data: dict[str, Any]) -> None:
        data["header"].update(schema=schema, tool_version="0.0.9")

    with pytest.raises(StoreError, match=complaint):
        store.load(changed(tmp_path / "run.json", change), RunRecord)


def test_damaged_files_are_kept_side_by_side(tmp_path: Path) -> None:
    names = []
    for content in ("first", "second", "third"):
        (tmp_path / "run.json").write_text(content)
        names.append(store.quarantine(tmp_path / "run.json").name)
    assert names == ["run.json.corrupt", "run.json.2.corrupt", "run.json.3.corrupt"]
    assert (tmp_path / "run.json.corrupt").read_text() == "first"
    assert not (tmp_path / "run.json").exists()
    with pytest.raises(StoreError, match="cannot be renamed"):
        store.quarantine(tmp_path / "run.json")


def test_a_complete_run_is_kept_when_a_new_one_begins(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    assert store.set_aside(path) is None
    store.save(replace(SMALL, complete=False), tmp_path)
    assert store.set_aside(path) is None
    store.save(SMALL, tmp_path)
    kept = store.set_aside(path)
    assert kept == tmp_path / "run.previous.json"
    assert store.load(kept, RunRecord) == SMALL == store.load(path, RunRecord)


@pytest.mark.parametrize(
    "label", ["", ".", "..", "-x", "A", "a/b", "a\\b", "a b", "a\n", "ä", "a" * 65, "a/../../b"]
)
def test_a_label_that_could_leave_its_directory_is_refused(label: str, tmp_path: Path) -> None:
    with pytest.raises(store.LabelError, match="cannot name a directory"):
        store.record_path(tmp_path, label)
    with pytest.raises(StoreError):
        store.save(replace(SMALL, header=replace(SMALL.header, label=label)), tmp_path)


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("NVIDIA GeForce RTX 4090", "nvidia-geforce-rtx-4090"),
        ("Intel(R) Xeon(R) CPU @ 2.20GHz", "intel-r-xeon-r-cpu-2.20ghz"),
        ("../../etc", "etc"),
        ("显卡", "device"),
        ("x" * 200, "x" * 64),
        ("9.5_x", "9.5-x"),
    ],
)
def test_every_device_name_gives_a_label(name: str, label: str) -> None:
    assert store.label_from_device_name(name) == label
    assert store.record_path(Path("reports"), label) == Path("reports") / label / "run.json"


def ask(script: str, *arguments: str) -> str:
    """What another process prints."""
    root = Path(__file__).parents[2]
    asked = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    return asked.stdout


def test_a_label_has_one_writer(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from diagnose.render import store\n"
        "try:\n"
        "    with store.label_lock(Path(sys.argv[1])): print('free')\n"
        "except store.StoreError as error: print(error)\n"
    )
    with store.label_lock(tmp_path):
        assert "another run is writing this label" in ask(script, str(tmp_path))
    assert ask(script, str(tmp_path)) == "free\n"


def test_reading_and_checking_need_no_heavy_library(tmp_path: Path) -> None:
    check.write_report(store.save(run_record(), tmp_path / run_record().header.label).parent)
    check.write_index(tmp_path)
    script = (
        "import sys; from pathlib import Path\n"
        "from diagnose.render import check\n"
        "problems = check.check(Path(sys.argv[1]))\n"
        "print(problems, [each for each in sys.modules if each in sys.argv])\n"
    )
    assert ask(script, str(tmp_path), "matplotlib", "torch") == "[] []\n"
