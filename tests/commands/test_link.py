"""Does ddp_bandwidth.py do what its manual says, and what does a job of several ranks survive?

Each fault is really done to a rank of gloo.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from diagnose.records.ranks import BandwidthRecord
from diagnose.render import store
from tests.support.cli import FAULTY, Outcome, diagnose_here
from tests.support.rank_jobs import (
    LABEL,
    TIMEOUT_SECONDS,
    bandwidth_options,
    by_hand,
    fault_variables,
    find_free_port,
    finish,
    read_bandwidth,
    torchrun,
)

SCRIPT = "ddp_bandwidth.py"
pytestmark = pytest.mark.child
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

Jobs = dict[str, Future[tuple[Outcome, Path]]]


def test_a_whole_job_from_another_directory(tmp_path: Path) -> None:
    words = [*bandwidth_options(Path("my reports")), "--env-sweep", "--link-gbit", "0.5"]
    job = finish(torchrun(SCRIPT, *words, "--model-bytes", "16K", cwd=tmp_path))
    assert (job.code, job.complaints, job.left) == (0, [], ()), job.err
    assert "busbw" in job.out
    assert f"report: my reports/{LABEL}/report.md" in job.out
    directory = tmp_path / "my reports" / LABEL
    assert "bandwidth.svg" in (directory / "report.md").read_text()
    assert (directory / "bandwidth.svg").read_text().startswith("<?xml")
    assert (directory.parent / "README.md").exists()
    text = (directory / "bandwidth.json").read_text()
    assert [name for name in (str(directory), str(Path.home())) if f"{name}/" in text] == []

    record = store.load(directory / "bandwidth.json", BandwidthRecord)
    assert record.complete
    assert record.culprit is None
    assert (record.backend, record.nodes, record.header.effort) == ("gloo", 1, "quick")
    assert [rank.rank for rank in record.ranks] == [0, 1]
    measured = {size.nbytes: size for size in record.sizes if size.status == "done"}
    assert list(measured) == [1024, 4096, 16384, 65536, 262144]
    assert measured[16384].purpose == "sweep, all gradients"
    assert all(len(size.latency_seconds) == 2 for size in measured.values())
    named = {size.nbytes for size in record.sizes if size.status == "skipped"}
    assert named == {4_000_000, 40_000_000, 200_000_000, 2**20, 25 * 2**20}
    assert record.surroundings["link_gbit"].value == "0.5"
    assert record.surroundings["NCCL_P2P_DISABLE"].reason == "not set"
    assert 0 < record.overhead_seconds < min(measured[1024].latency_seconds[0])

    trials = {each.name: each for each in record.trials}
    assert [size.nbytes for size in trials["as it is"].sizes] == [1024]
    assert trials["GLOO_SOCKET_IFNAME=lo"].status == trials["as it is"].status == "done"
    assert trials["GLOO_SOCKET_IFNAME=lo"].variables == {"GLOO_SOCKET_IFNAME": "lo"}
    others = [each for name, each in trials.items() if name.startswith("NCCL_")]
    assert [each.status for each in others] == ["skipped"] * 5
    assert all("the ranks use gloo" in each.reason for each in others)


def test_the_last_stage_of_a_run_is_the_link(tmp_path: Path) -> None:
    words = ["run", "--workload", FAULTY, "--smoke", "--label", "x", "--reports", tmp_path]
    outcome = diagnose_here(*words, "--stages", "inference", "interconnect")
    assert outcome.code == 0, outcome.err
    record = store.load(tmp_path / "x" / "bandwidth.json", BandwidthRecord)
    assert record.complete
    assert [each.rank for each in record.ranks] == [0, 1]
    assert {each.status for each in record.sizes} == {"done", "skipped"}
    assert "How fast is the link between the ranks?" in (tmp_path / "x" / "report.md").read_text()


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    """Every broken job, all of them on their way before the first test looks at one."""

    def run(fault: str, ranks: int) -> tuple[Outcome, Path]:
        reports = tmp_path_factory.mktemp("reports")
        variables = fault_variables(f"{fault} {AT_THIRD_SIZE}")
        words = bandwidth_options(reports)
        return finish(torchrun(SCRIPT, *words, ranks=ranks, extra=variables)), reports

    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield {fault: pool.submit(run, fault, ranks) for fault, ranks in FAULTS.items()}


def codes(job: Outcome) -> set[int]:
    """How the supervisors ended, as torchrun tells it: its own code is 1 whatever they say."""
    assert job.code == 1
    return {int(code) for code in re.findall(r"^ *exitcode *: (-?\d+)", job.err, re.MULTILINE)}


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
    fault: str, reason: str, jobs: Jobs
) -> None:
    job, reports = jobs[fault].result()
    assert job.complaint.startswith(f"rank 1 {reason}")
    record = read_bandwidth(reports)
    sizes = [size["nbytes"] for size in record["sizes"]]
    where = record["culprit"]["where"]
    if fault.startswith("kill supervisor"):
        # Its rank lives until it is ended, and may finish a size or two before that.
        assert sizes[:2] == [1024, 4096]
        assert where.startswith("all-reduce of ")
    else:
        assert (sizes, where) == ([1024, 4096], PLACE)
    assert f" during the {where}; {len(sizes)} of " in job.complaint
    assert {size["status"] for size in record["sizes"]} == {"done"}
    assert record["culprit"]["rank"] == 1
    assert record["culprit"]["reason"].startswith(reason)
    assert not record["complete"]
    assert {3} <= codes(job) <= {3, -9}
    assert job.left == ()
    assert "rank 1" in (reports / LABEL / "report.md").read_text().lower()


def test_a_stopped_supervisor_is_found_at_the_end_and_ended(
    jobs: Jobs,
) -> None:
    """Its rank goes on working, so nothing that was measured is missing."""
    job, reports = jobs["stop supervisor 1"].result()
    assert job.complaint.startswith(f"rank 1 {GONE} during the end; ")
    record = read_bandwidth(reports)
    assert {size["status"] for size in record["sizes"]} <= {"done", "skipped"}
    assert record["culprit"]["rank"] == 1
    assert codes(job) == {3, -9}
    assert job.left == ()


def test_an_interruption_keeps_what_was_measured(jobs: Jobs, tmp_path: Path) -> None:
    job, reports = jobs["interrupt torchrun 0"].result()
    # torchrun hides the code of its processes, so one of them runs by hand.
    words = bandwidth_options(tmp_path)
    fault = fault_variables(f"interrupt supervisor 0 {AT_THIRD_SIZE}")
    single = finish(by_hand(SCRIPT, *words, extra=fault))
    assert single.code == 130
    for ended, where in ((job, reports), (single, tmp_path)):
        assert ended.complaint.startswith(f"interrupted; {KEPT} of ")
        record = read_bandwidth(where)
        assert len(record["sizes"]) == KEPT
        assert record["culprit"] is None
        assert not record["complete"]
        assert ended.code != 0
        assert ended.left == ()


def test_fewer_ranks_than_the_world_size_says(tmp_path: Path) -> None:
    words, port = bandwidth_options(tmp_path), find_free_port()
    with (
        by_hand(SCRIPT, *words, rank=0, ranks=3, port=port) as zero,
        by_hand(SCRIPT, *words, rank=1, ranks=3, port=port) as one,
    ):
        first, second = zero.finish(), one.finish()
    assert first.complaint.startswith(f"only 2 of 3 ranks appeared within {TIMEOUT_SECONDS} s; ")
    assert (first.code, second.code) == (3, 3)
    assert (first.left, second.left) == ((), ())


def test_a_taken_port_and_nobody_at_the_port(tmp_path: Path) -> None:
    words = bandwidth_options(tmp_path)
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = taken.getsockname()[1]
        holder = finish(by_hand(SCRIPT, *words, rank=0, ranks=2, port=port))
    assert holder.complaint.startswith(f"port {port} is taken by another process; ")
    late = finish(by_hand(SCRIPT, *words, "--timeout", "2", rank=1, ranks=2, port=port))
    assert late.complaint.startswith(f"no rendezvous at 127.0.0.1:{port} within 2 s; ")
    assert (holder.code, late.code) == (3, 3)
    assert (holder.left, late.left) == ((), ())
