"""What a job of several ranks survives. Each test really does the thing to a rank of gloo."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.rank_jobs import TIMEOUT_SECONDS, Job, by_hand, find_free_port, finish, torchrun

# Kind, rank and size of the fault; sizes 1 KiB and 4 KiB are measured before it, in every job.
AT_THIRD_SIZE = "16384"
KEPT = 2
PLACE = f"all-reduce of {AT_THIRD_SIZE} bytes"
GONE = "cannot be reached any more (its host, its link or its supervising process is gone)"
# As many at once as a small machine bears: most of the time they wait.
AT_ONCE = 3


# What is done to which rank, and how many ranks the job has; those that wait longest first.
FAULTS = {
    "stop supervisor 1": 2,
    "stop 1": 2,
    "kill 1": 3,
    "memory 1": 2,
    "kill supervisor 1": 2,
    "interrupt torchrun 0": 2,
}


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[Job]]]:
    """Every broken job, all of them on their way before the first test looks at one."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield {
            fault: pool.submit(
                torchrun,
                tmp_path_factory.mktemp("reports"),
                fault=f"{fault} {AT_THIRD_SIZE}",
                ranks=ranks,
            )
            for fault, ranks in FAULTS.items()
        }


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("kill 1", "was killed by SIGKILL"),
        ("stop 1", "was stopped by a signal"),
        ("memory 1", "ran out of memory ("),
        ("kill supervisor 1", GONE),
    ],
)
def test_the_rank_is_named_and_what_was_measured_is_kept(
    fault: str, reason: str, jobs: dict[str, Future[Job]]
) -> None:
    job = jobs[fault].result()
    (complaint,) = job.complaints
    assert complaint.startswith(f"rank 1 {reason}")
    assert f" during the {PLACE}; {KEPT} of " in complaint
    assert complaint.endswith("bandwidth.json")
    record = job.record
    assert [size["nbytes"] for size in record["sizes"]] == [1024, 4096]
    assert {size["status"] for size in record["sizes"]} == {"done"}
    assert record["culprit"]["rank"] == 1
    assert record["culprit"]["reason"].startswith(reason)
    assert record["culprit"]["where"] == PLACE
    assert not record["complete"]
    assert codes(job) <= {3, -9}
    assert 3 in codes(job)
    assert job.left == []
    (report,) = job.reports.glob("*/report.md")
    assert "rank 1" in report.read_text().lower()


def codes(job: Job) -> set[int]:
    """How the supervisors ended, as torchrun tells it: its own code is 1 whatever they say."""
    assert job.code == 1
    return {int(code) for code in re.findall(r"^ *exitcode *: (-?\d+)", job.err, re.MULTILINE)}


def test_a_stopped_supervisor_is_found_at_the_end_and_ended(jobs: dict[str, Future[Job]]) -> None:
    """Its rank goes on working, so nothing that was measured is missing."""
    job = jobs["stop supervisor 1"].result()
    (complaint,) = job.complaints
    assert complaint.startswith(f"rank 1 {GONE} during the end; ")
    assert {size["status"] for size in job.record["sizes"]} <= {"done", "skipped"}
    assert job.record["culprit"]["rank"] == 1
    assert codes(job) == {3, -9}
    assert job.left == []


def test_an_interruption_keeps_what_was_measured(jobs: dict[str, Future[Job]]) -> None:
    job = jobs["interrupt torchrun 0"].result()
    (complaint,) = job.complaints
    assert complaint.startswith(f"interrupted; {KEPT} of ")
    assert len(job.record["sizes"]) == KEPT
    assert job.record["culprit"] is None
    assert not job.record["complete"]
    assert job.code != 0
    assert job.left == []


def test_an_interrupted_process_says_130(tmp_path: Path) -> None:
    fault = f"interrupt supervisor 0 {AT_THIRD_SIZE}"
    started = by_hand(tmp_path, 0, 1, find_free_port(), fault=fault)
    job = finish(started, tmp_path)
    assert job.code == 130
    assert len(job.record["sizes"]) == KEPT
    assert job.left == []


def test_fewer_ranks_than_the_world_size_says(tmp_path: Path) -> None:
    port = find_free_port()
    started = [by_hand(tmp_path, rank, 3, port) for rank in range(2)]
    first, second = (finish(each, tmp_path) for each in started)
    (complaint,) = first.complaints
    assert complaint == (
        f"only 2 of 3 ranks appeared within {TIMEOUT_SECONDS} s; start as many processes as "
        "WORLD_SIZE=3 says, or mend --nnodes and --nproc-per-node"
    )
    assert (first.code, second.code) == (3, 3)
    assert (first.left, second.left) == ([], [])


def test_a_taken_port_and_nobody_at_the_port(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = taken.getsockname()[1]
        holder = finish(by_hand(tmp_path, 0, 2, port), tmp_path)
    assert holder.complaints == [
        f"port {port} is taken by another process; choose a free one with torchrun's "
        "--master-port, or with MASTER_PORT"
    ]
    late = finish(by_hand(tmp_path, 1, 2, port, "--timeout", "2"), tmp_path)
    (complaint,) = late.complaints
    assert complaint.startswith(f"no rendezvous at 127.0.0.1:{port} within 2 s; ")
    assert (holder.code, late.code) == (3, 3)
    assert (holder.left, late.left) == ([], [])


def test_a_backend_that_is_not_there(tmp_path: Path) -> None:
    words = ("--backend", "nccl", "--device", "cpu")
    job = finish(by_hand(tmp_path, 0, 1, find_free_port(), *words), tmp_path)
    (complaint,) = job.complaints
    assert complaint.startswith("backend 'nccl' moves CUDA tensors only and this run uses the CPU")
    assert job.code == 2
    assert job.left == []
