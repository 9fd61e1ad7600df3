"""Does the script do what its manual says? As its user runs it, from any directory."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from diagnose.records.ranks import BandwidthRecord
from diagnose.render import store
from tests.support.cli import FAULTY, diagnose_here, environment
from tests.support.rank_jobs import LABEL, SCRIPT, Job, torchrun


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """One whole job with every trial, started somewhere else."""
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    return torchrun(
        Path("my reports"), "--env-sweep", "--link-gbit", "0.5", "--model-bytes", "16K",
        cwd=elsewhere,
    )  # fmt: skip


@pytest.fixture(scope="module")
def directory(job: Job, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return next(tmp_path_factory.getbasetemp().glob("elsewhere*")) / "my reports" / LABEL


def test_it_ends_well_and_leaves_nobody(job: Job) -> None:
    assert job.code == 0, job.err
    assert job.complaints == []
    assert job.left == []


def test_the_record_holds_every_size_and_is_complete(job: Job, directory: Path) -> None:
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


def test_every_setting_is_tried_or_says_why_not(job: Job, directory: Path) -> None:
    record = store.load(directory / "bandwidth.json", BandwidthRecord)
    trials = {each.name: each for each in record.trials}
    assert trials["as it is"].status == "done"
    assert [size.nbytes for size in trials["as it is"].sizes] == [1024]
    assert trials["GLOO_SOCKET_IFNAME=lo"].status == "done"
    assert trials["GLOO_SOCKET_IFNAME=lo"].variables == {"GLOO_SOCKET_IFNAME": "lo"}
    others = [each for name, each in trials.items() if name.startswith("NCCL_")]
    assert len(others) == 5
    assert {each.status for each in others} == {"skipped"}
    assert all("the ranks use gloo" in each.reason for each in others)


def test_the_table_and_the_report_are_there(job: Job, directory: Path) -> None:
    assert "\n| 1.02 kB | sweep | " in job.out
    assert "busbw" in job.out
    assert f"report: my reports/{LABEL}/report.md" in job.out
    assert "bandwidth.svg" in (directory / "report.md").read_text()
    assert (directory / "bandwidth.svg").read_text().startswith("<?xml")
    assert (directory.parent / "README.md").exists()


def test_no_path_of_this_machine_enters_the_record(job: Job, directory: Path) -> None:
    text = (directory / "bandwidth.json").read_text()
    assert json.loads(text)["header"]["label"] == LABEL
    assert [name for name in (str(directory), str(Path.home())) if f"{name}/" in text] == []


def run_alone(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-X", "importtime", str(SCRIPT), *words],
        env=environment({}),
        capture_output=True,
        text=True,
        check=False,
    )


def test_help_is_the_manual_and_loads_no_torch() -> None:
    done = run_alone("--help")
    assert done.returncode == 0
    assert "Exit codes: 0 fine, 2 wrong usage" in done.stdout
    assert "--env-sweep" in done.stdout
    imported = re.findall(r"^import time:.*\| +(\S+)$", done.stderr, flags=re.MULTILINE)
    assert "argparse" in imported
    assert not {"torch", "pandas", "matplotlib"} & set(imported)


def test_without_torchrun_it_says_how_to_start_it() -> None:
    done = run_alone()
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert last.startswith("diagnose: no job to take part in: RANK, WORLD_SIZE, ")
    assert last.endswith("start it with torchrun --nproc-per-node=2 diagnose/ddp_bandwidth.py")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--max-bytes", "much"), "'much' is no size; write 4000000, 64M or 1G"),
        (("--max-bytes", "12"), "'12' is under the smallest size, 1024 bytes"),
        (("--timeout", "0"), "'0' is not a positive number"),
        (("--quick", "--full"), "not allowed with argument"),
    ],
)
def test_wrong_options_are_refused(words: tuple[str, ...], sentence: str) -> None:
    done = run_alone(*words)
    assert done.returncode == 2
    assert sentence in done.stderr


def test_the_last_stage_of_a_run_is_the_link(tmp_path: Path) -> None:
    words = ["run", "--workload", FAULTY, "--smoke", "--label", "x", "--reports", tmp_path]
    outcome = diagnose_here(*words, "--stages", "inference", "interconnect")
    assert outcome.code == 0, outcome.err
    assert "2 ranks over gloo on one machine exchange" in outcome.out
    record = store.load(tmp_path / "x" / "bandwidth.json", BandwidthRecord)
    assert record.complete
    assert [each.rank for each in record.ranks] == [0, 1]
    assert {each.status for each in record.sizes} == {"done", "skipped"}
    text = (tmp_path / "x" / "report.md").read_text()
    assert "- How fast is the link between the ranks? " in text
