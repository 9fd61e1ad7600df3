"""`batch-size` as its user runs it: byte limits, a real RLIMIT_AS, faults, ranks."""

from __future__ import annotations

import json
import math
import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import Outcome, command, diagnose, launch, started
from tests.support.rank_jobs import find_free_port

SIZED = "tests/support/jobs/sized.py"
MIB = 2**20
# In MiB: of a device, and what a process may take beyond what it has.
DEVICE_LIMITS = (10, 40)
ROOMS = (120, 333)
SAMPLE_MIB = 16
SAMPLES_PER_MIB = 4  # on the device


def find(reports: Path, *options: object, **extra: str) -> Outcome:
    return diagnose(
        "batch-size", "--workload", SIZED, "--smoke", "--reports", reports, "--label", "b",
        *options, **extra,
    )  # fmt: skip


def read(reports: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((reports / "b" / "batch_size.json").read_text())
    return record


def probes_of(reports: Path, place: int = 0) -> list[dict[str, Any]]:
    probes: list[dict[str, Any]] = read(reports)["configurations"][place]["probes"]
    return probes


def exact_maximum(probes: list[dict[str, Any]]) -> int:
    """It fits in a fresh process, and the next batch was tried and does not."""
    largest = max(p["batch"] for p in probes if p["fresh"] and p["status"] == "fits")
    assert any(p["batch"] == largest + 1 and p["status"] != "fits" for p in probes), probes
    return int(largest)


def test_the_exact_maximum_of_an_accelerator(tmp_path: Path, fakegpu_env: dict[str, str]) -> None:
    """Two tiles of 1 MiB per sample in 90 % of 40 MiB: 18, less what model and inputs take."""
    outcome = find(
        tmp_path, "--device", "fakegpu", "--json", "--sweep", 1, 2, 64, "--batch_size", 64,
        "--max_crops_list", 1, 2, "--start_from_max_crops", 2,
        FAKEGPU_LIMIT_BYTES=str(40 * MIB), **fakegpu_env,
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    (configuration,) = read(tmp_path)["configurations"]
    assert configuration["key"] == "max_crops 2"
    assert configuration["estimates"][0]["high"] == 64
    probes = configuration["probes"]
    assert exact_maximum(probes) == 17
    assert len(probes) - 1 <= 2 + 2 * math.log2(17)
    by_batch = {p["batch"]: p for p in probes}
    assert by_batch[18]["status"] == "over the limit"
    assert len(by_batch[17]["step_seconds"]) == 3
    assert 34 * MIB <= by_batch[17]["peak_bytes"]["value"] <= 36 * MIB
    assert by_batch[17]["available_bytes"]["value"] == 40 * MIB
    (told,) = json.loads(outcome.out)["configurations"]
    assert (told["largest"], told["is_exact"]) == (17, True)
    used = configuration["batch_size_used"]
    assert used == told["batch_size_used"] == (told["use"] or 17)
    report = (tmp_path / "b" / "report.md").read_text()
    assert "Asked for, but too large to fit: 64." in report
    assert (tmp_path / "b" / "batch_size.svg").exists()


def test_out_of_memory_at_batch_1_says_what_it_needs(
    tmp_path: Path, fakegpu_env: dict[str, str]
) -> None:
    outcome = find(
        tmp_path, "--device", "fakegpu", PER_SAMPLE=str(32 * MIB),
        FAKEGPU_LIMIT_BYTES=str(16 * MIB), **fakegpu_env,
    )  # fmt: skip
    assert outcome.code == 3
    assert "batch 1 does not fit" in outcome.complaint
    assert f"Tried to allocate {32 * MIB} bytes" in outcome.complaint
    assert "No batch size can be used" in outcome.out
    assert [p["batch"] for p in probes_of(tmp_path)] == [1]


def test_a_memory_limit_below_one_sample_is_refused_in_one_sentence(tmp_path: Path) -> None:
    outcome = find(tmp_path, "--device", "cpu", "--memory-limit", 100, PER_SAMPLE=str(256 * MIB))
    assert outcome.code == 3
    assert outcome.complaint.count("\n") == 0
    assert "batch 1 does not fit" in outcome.complaint
    assert "or a device with more memory" in outcome.complaint
    assert "No batch size can be used" in outcome.out
    (configuration,) = read(tmp_path)["configurations"]
    assert configuration["batch_size_used"] is None


def test_the_exact_maximum_under_a_limit_of_the_system(tmp_path: Path) -> None:
    # Every further arena of the C library takes 64 MiB of addresses; how many there are is chance.
    sizes = {"PER_SAMPLE": str(16 * MIB), "ROOM_BYTES": str(768 * MIB), "MALLOC_ARENA_MAX": "1"}
    outcome = find(tmp_path, "--device", "cpu", **sizes)
    assert outcome.code == 0, outcome.err
    # How much of the room torch itself takes differs between processors.
    assert 4 <= exact_maximum(probes_of(tmp_path)) <= 48, "16 MiB each, in at most 768 MiB"


@pytest.fixture(scope="module")
def of_accelerator(fakegpu_env: dict[str, str]) -> list[dict[str, Any]]:
    return search_under(
        "fakegpu", DEVICE_LIMITS, PER_SAMPLE=str(MIB // SAMPLES_PER_MIB), **fakegpu_env
    )


@pytest.fixture(scope="module")
def of_system() -> list[dict[str, Any]]:
    return search_under("cpu", ROOMS, PER_SAMPLE=str(SAMPLE_MIB * MIB))


def search_under(kind: str, limits: tuple[int, ...], **extra: str) -> list[dict[str, Any]]:
    """One process searches under all of them: importing torch is most of the time."""
    done = launch(
        [sys.executable, "-m", "tests.support.jobs.limits", kind, *map(str, limits)], extra
    )
    assert done.code == 0, done.err
    found: list[dict[str, Any]] = json.loads(done.out)
    return found


def enclosed_maximum(probes: list[dict[str, Any]]) -> int:
    """The largest that fits, of which the next one was tried and did not."""
    largest = max(p["batch"] for p in probes if p["status"] == "fits")
    assert min(p["batch"] for p in probes if p["status"] != "fits") == largest + 1, probes
    assert len(probes) <= 2 + 2 * math.log2(largest)
    return int(largest)


@pytest.mark.parametrize("place", range(len(DEVICE_LIMITS)))
def test_every_byte_limit_has_its_exact_maximum(
    of_accelerator: list[dict[str, Any]], place: int
) -> None:
    """90 % of it are whole samples, and model and inputs take less than one of them."""
    expected = SAMPLES_PER_MIB * 9 * DEVICE_LIMITS[place] // 10 - 1
    assert of_accelerator[place]["available"] == DEVICE_LIMITS[place] * MIB
    assert enclosed_maximum(of_accelerator[place]["probes"]) == expected


@pytest.mark.parametrize("place", range(len(ROOMS)))
def test_every_limit_of_the_system_has_its_exact_maximum(
    of_system: list[dict[str, Any]], place: int
) -> None:
    # What the process keeps for itself counts too, so only the room is a bound to compute; that
    # the answer is exact shows in its neighbour, which was tried and did not fit.
    room = ROOMS[place] // SAMPLE_MIB
    assert room // 3 <= enclosed_maximum(of_system[place]["probes"]) <= room


def test_ctrl_c_keeps_what_was_found(tmp_path: Path) -> None:
    words = command(
        "batch-size", "--workload", SIZED, "--smoke", "--device", "cpu", "--reports", tmp_path,
        "--label", "b", "--no-auto-adjust-batch-size", "--batch-size", 1, "--max-crops-list", 1, 2,
    )  # fmt: skip
    with started(words, {"FAULT": "sleep", "FROM": "2"}) as job:
        # The first configuration is saved, the second one sleeps.
        job.wait_until((tmp_path / "b" / "batch_size.json").exists)
        done = job.interrupt()
    assert (done.code, done.left) == (130, ())
    assert "Traceback" not in done.err
    record = read(tmp_path)
    assert [each["key"] for each in record["configurations"]] == ["max_crops 1"]
    assert record["complete"] is False
    assert "`max_crops` 1" in (tmp_path / "b" / "report.md").read_text()


def test_a_probe_that_hangs_meets_its_deadline(tmp_path: Path, fakegpu_env: dict[str, str]) -> None:
    outcome = find(
        tmp_path, "--device", "fakegpu", "--timeout", 5, "--max-attempts", 3,
        FAULT="sleep", FROM="2", **fakegpu_env,
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    probes = probes_of(tmp_path)
    assert [(p["batch"], p["status"]) for p in probes] == [(1, "fits"), (2, "hung")]
    assert "no result after 5 s" in probes[1]["reason"]
    assert read(tmp_path)["configurations"][0]["stopped"] == "", "2 is the next batch after 1"


def test_a_fixed_batch_is_the_only_one_tried(tmp_path: Path) -> None:
    outcome = find(
        tmp_path, "--device", "cpu", "--batch-size", 50, "--no_auto_adjust_batch_size",
        FAULT="raise", FROM="50",
    )  # fmt: skip
    assert outcome.code == 3
    assert [p["batch"] for p in probes_of(tmp_path)] == [50]
    assert "batch 50 does not fit: KeyError: 'no such column' (sized.py:" in outcome.complaint


def test_all_ranks_agree_on_the_smallest(tmp_path: Path, fakegpu_env: dict[str, str]) -> None:
    """Two ranks with different memory; the one that runs out hangs nobody."""
    limits = [{"FAKEGPU_LIMIT_BYTES": str(nbytes)} for nbytes in (64 * MIB, 2 * MIB)]
    done = run_ranks(tmp_path, fakegpu_env, limits)
    assert [outcome.code for outcome in done] == [0, 0]
    record = read(tmp_path)
    assert record["ranks"] == 2
    probes = probes_of(tmp_path)
    refused = [p["reason"] for p in probes if p["status"] != "fits"]
    assert refused
    assert all(reason.startswith("rank 1: ") for reason in refused)
    refusal = (2, "out of memory")
    found = [(p["batch"], p["status"], p["fresh"]) for p in probes]
    assert found == [(1, "fits", True), (*refusal, False), (*refusal, True)]


def test_a_rank_that_dies_is_named_by_the_other(
    tmp_path: Path, fakegpu_env: dict[str, str]
) -> None:
    """Long before its answer is given up: that would take longer than the test may."""
    left, gone = run_ranks(tmp_path, fakegpu_env, [{}, {"FAULT": "orphan", "FROM": "2"}])
    assert gone.code == -signal.SIGKILL
    assert left.code == 3, left.err
    assert left.complaint == "rank 1 is gone: its process has ended"


def run_ranks(
    reports: Path, fakegpu_env: dict[str, str], variables: list[dict[str, str]]
) -> list[Outcome]:
    words = command(
        "batch-size", "--workload", SIZED, "--device", "fakegpu", "--smoke",
        "--reports", reports, "--label", "b",
    )  # fmt: skip
    place = {"WORLD_SIZE": str(len(variables)), "MASTER_PORT": str(find_free_port())}
    common = {**fakegpu_env, "MASTER_ADDR": "127.0.0.1", **place}
    with ExitStack() as stack:
        jobs = [
            stack.enter_context(started(words, {**common, "RANK": str(rank), **own}))
            for rank, own in enumerate(variables)
        ]
        return [job.finish() for job in jobs]
