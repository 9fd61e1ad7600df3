"""What does ddp_scaling.py measure and keep? Real ranks under torchrun; no time is asserted."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from diagnose.commands.scaling import add_line, build_parser
from diagnose.measure.ranks.scaling.ledger import Forms
from diagnose.measure.ranks.scaling.options import KEYS
from diagnose.measure.ranks.scaling.rank_input import RankInput
from diagnose.measure.ranks.scaling.replica import LossOf
from diagnose.records.codec import dumps
from diagnose.records.ranks import SERIES_NAMES, ScalingRecord
from diagnose.render import store
from diagnose.workload import Network
from tests.support.cli import ROOT, environment, processes_with
from tests.support.records.experiments import ended
from tests.support.records.scaling import scaling_record

ENTRY = ROOT / "diagnose" / "ddp_scaling.py"
STRIPES = ROOT / "bench" / "examples" / "my_job.py"
RANKS_JOB = ROOT / "tests" / "support" / "jobs" / "ranks.py"
TIMEOUT_SECONDS = 240
TRIED = ("accumulate_2", "static_graph_no_sync", "zero_optimizer")


def torchrun(reports: Path, *arguments: object, ranks: int = 2) -> list[str]:
    return [
        sys.executable, "-m", "torch.distributed.run", "--standalone",
        f"--nproc-per-node={ranks}", str(ENTRY), "--smoke", "--device", "cpu",
        "--reports", str(reports), "--label", "ranks", *map(str, arguments),
    ]  # fmt: skip


def run(words: list[str], cwd: Path, **extra: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words,
        cwd=cwd,
        env=environment(extra),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )


def complaints(err: str) -> list[str]:
    marked = [line for line in err.splitlines() if line.startswith("diagnose: ")]
    return [line.removeprefix("diagnose: ") for line in marked]


def read(reports: Path) -> ScalingRecord:
    return store.load(reports / "ranks" / store.SCALING_NAME, ScalingRecord)


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One whole run, started from a directory that is not the project's."""
    folder = tmp_path_factory.mktemp("scaling")
    words = torchrun(folder / "reports", "--workload", STRIPES, "--size", "tiny", "--only", *TRIED)
    done = run(words, folder)
    assert done.returncode == 0, done.stderr
    return folder / "reports"


def test_the_ledger_holds_every_series_of_every_rank(reports: Path) -> None:
    record = read(reports)
    assert record.complete
    assert record.culprit is None
    assert [each.name for each in record.series] == list(SERIES_NAMES)
    blocks = {len(each.slot_seconds[0]) for each in record.series}
    assert len(blocks) == 1
    for each in record.series:
        working = [len(slots) > 0 for slots in each.slot_seconds]
        assert working == [True, not each.name.startswith("alone")]


def test_the_link_is_measured_at_the_sizes_of_the_real_buckets(reports: Path) -> None:
    record = read(reports)
    assert sum(record.bucket_bytes) == record.gradient_bytes > 0
    assert {each.nbytes for each in record.curve} == set(record.bucket_bytes)
    assert all(each.status == "done" for each in record.curve)


def test_every_option_is_a_row_and_the_crash_is_one_too(reports: Path) -> None:
    rows = {(each.key, each.form): each for each in read(reports).comparisons}
    assert {key for key, _ in rows} == set(TRIED)
    crash = rows["static_graph_no_sync", "after"]
    assert crash.status == "failed"
    assert "expect_autograd_hooks_ INTERNAL ASSERT FAILED" in crash.reason
    for key in (("accumulate_2", "after"), ("accumulate_2", "as published")):
        row = rows[key]
        assert row.status == "done"
        assert row.equality is not None
        assert all(check.equal for check in row.equality.checks)
        assert row.before is not None
        assert row.after is not None
        assert len(row.before.timing.slot_seconds) == len(row.after.timing.slot_seconds) > 0


def test_the_published_form_exchanges_as_often_as_none(reports: Path) -> None:
    rows = {(each.key, each.form): each.facts for each in read(reports).comparisons}
    assert rows["accumulate_2", "after"]["all_reduces_before"] == 2
    assert rows["accumulate_2", "after"]["all_reduces_after"] == 1
    assert rows["accumulate_2", "as published"]["all_reduces_after"] == 2


def test_input_cadence_and_power_are_told_or_say_why_not(reports: Path) -> None:
    record = read(reports)
    assert record.settings["input"] == "DistributedSampler"
    assert record.cadence is not None
    assert record.cadence.evaluation_seconds.value is not None
    assert record.cadence.saving_seconds.value is not None
    assert [each.reason for each in record.watts] == ["the CPU has no NVML"] * 2
    assert len(record.backward_seconds) > 0


def test_the_report_is_rendered(reports: Path) -> None:
    text = (reports / "ranks" / "report.md").read_text()
    assert "accumulate" in text
    assert "Where scaling is lost" in text


def test_an_option_that_fails_on_one_rank_is_a_row_and_the_rest_go_on(tmp_path: Path) -> None:
    words = torchrun(
        tmp_path, "--workload", RANKS_JOB, "--timeout", 12, "--json",
        "--only", "accumulate_4x32", "find_unused",
    )  # fmt: skip
    done = run(words, ROOT, FAULT="quarter")
    assert done.returncode == 0, done.stderr
    record = read(tmp_path)
    rows = {each.key: each for each in record.comparisons}
    failed = rows["accumulate_4x32"]
    assert (failed.status, failed.before) == ("failed", None)
    assert failed.reason == "rank 1 ran out of memory (tried to allocate 9.00 GiB)"
    assert rows["find_unused"].status == "done"
    assert record.settings["input"] == "one synthetic batch: workload ranks has no datasets"
    options = {each["name"]: each["verdict"] for each in json.loads(done.stdout)["options"]}
    assert options["accumulate_4x32"] == "FAILED"


def find_rank(number: int, token: str) -> int:
    """The process that does the work of one rank."""
    for pid in processes_with(token):
        try:
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if b"ranks.job.member" in command and f"RANK={number}".encode() in variables:
            return pid
    raise AssertionError(f"rank {number} does not run")


def test_what_was_measured_before_a_rank_is_killed_is_kept(tmp_path: Path) -> None:
    token = secrets.token_hex(8)
    words = torchrun(tmp_path, "--workload", RANKS_JOB, "--timeout", 20)
    started = subprocess.Popen(
        words,
        cwd=ROOT,
        env=environment({"TOKEN": token}),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    path = tmp_path / "ranks" / store.SCALING_NAME
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not path.exists() or not store.load(path, ScalingRecord).comparisons:
        assert started.poll() is None, started.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(find_rank(1, token), signal.SIGKILL)
    _, err = started.communicate(timeout=TIMEOUT_SECONDS)
    assert started.returncode == 1, "torchrun turns every failure into 1"
    record = read(tmp_path)
    assert record.culprit is not None
    assert (record.culprit.rank, record.culprit.reason) == (1, "was killed by SIGKILL")
    assert not record.complete
    assert record.comparisons
    assert len(record.series) == len(SERIES_NAMES)
    (sentence,) = complaints(err)
    assert sentence.startswith("rank 1 was killed by SIGKILL during the ")
    assert f"{len(record.comparisons)} rows of options were kept in" in sentence
    assert processes_with(token) == []


@pytest.fixture
def forms(tmp_path: Path) -> Iterator[Forms]:
    """The seven forms of a job with buffers, on a rank that is its own and only peer."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    network = Network(build=lambda size: model, loss=lambda model, batch: model(batch).sum())
    batch = torch.randn(3, 4)
    source = RankInput({}, resident=lambda: batch, loaded=lambda: batch)
    yield Forms(LossOf(network, model), False, source)
    dist.destroy_process_group()


def test_ranks_agree_on_sending_buffers_whatever_rank_0_did_alone(forms: Forms) -> None:
    """A rank that sends while another does not would wait for ever."""
    variants = {each.name: each for each in forms.variants()}
    assert list(variants) == list(SERIES_NAMES)
    for name, sends in (("local", False), ("synchronised", True), ("full", True)):
        for earlier in variants.values():
            earlier.before_slot()
            earlier.step()
            variants[f"together {name} input"].before_slot()
            assert forms.sends_buffers is sends


def test_no_form_changes_the_weights_or_leaves_gradients(forms: Forms) -> None:
    before = [each.clone() for each in forms.weights]
    for variant in forms.variants():
        variant.before_slot()
        variant.step()
        assert all(each.grad is None for each in forms.weights)
        assert all(torch.equal(a, b) for a, b in zip(forms.weights, before, strict=True))


def single_rank(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Without torchrun, whose own exit code hides that of the program."""
    words = [sys.executable, str(ENTRY), "--device", "cpu", *map(str, arguments)]
    place = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29417"}
    return run(words, ROOT, **place)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--workload", "nothing"), "no workload 'nothing'; use bert, dgca, "),
        (("--workload", RANKS_JOB, "--data", "x.txt"), "has no datasets, so --data has no use"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_one_sentence(
    arguments: tuple[object, ...], sentence: str
) -> None:
    done = single_rank(*arguments)
    assert done.returncode == 2, done.stderr
    (said,) = complaints(done.stderr)
    assert sentence in said


def test_without_torchrun_it_says_how_to_start_it() -> None:
    clean = {name: value for name, value in os.environ.items() if name not in ("RANK",)}
    done = subprocess.run(
        [sys.executable, str(ENTRY)], env=clean, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    (said,) = complaints(done.stderr)
    assert "torchrun --nproc-per-node=2 diagnose/ddp_scaling.py" in said


@pytest.mark.parametrize(
    "arguments",
    [("--only", "nonsense"), ("--batch-size", "0"), ("--timeout", "-1"), ("--seed", "x")],
)
def test_wrong_options_are_usage_errors(arguments: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit, match="2"):
        build_parser().parse_args(arguments)


def test_only_without_a_name_leaves_out_every_option() -> None:
    assert build_parser().parse_args(["--only"]).only == []
    assert tuple(build_parser().parse_args([]).only) == KEYS


def test_options_are_read_without_torch() -> None:
    code = (
        "import sys; from diagnose.commands import scaling; scaling.build_parser().format_help(); "
        "sys.exit(any(name in sys.modules for name in ('torch', 'pandas', 'matplotlib')))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


@pytest.mark.parametrize(
    ("kind", "content", "field", "expected"),
    [
        ("buckets", [4, 8], "bucket_bytes", (4, 8)),
        ("backward", [0.5], "backward_seconds", (0.5,)),
        ("series", [], "series", ()),
        ("watts", [], "watts", ()),
    ],
)
def test_a_line_of_the_ranks_enters_the_record(
    kind: str, content: Any, field: str, expected: object
) -> None:
    assert getattr(add_line(scaling_record(), kind, content), field) == expected


def test_rows_are_added_one_by_one_and_unknown_lines_refused() -> None:
    record = scaling_record()
    for key in ("bucket_view", "fsdp2"):
        line = json.loads(dumps(ended(key, "skipped", "no reason")))
        record = add_line(record, "comparison", line)
    assert [each.key for each in record.comparisons] == ["bucket_view", "fsdp2"]
    with pytest.raises(ValueError, match="unknown kind 'gossip'"):
        add_line(record, "gossip", None)
