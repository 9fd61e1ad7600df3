"""What does ddp_scaling.py measure and keep? Real ranks under torchrun; no time is asserted."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from diagnose.commands import scaling
from diagnose.commands.shared.arguments import Parser
from diagnose.measure.ranks.growth import add_line
from diagnose.measure.ranks.scaling.ledger import Forms
from diagnose.measure.ranks.scaling.options import KEYS
from diagnose.measure.ranks.scaling.rank_input import RankInput
from diagnose.measure.ranks.scaling.replica import LossOf
from diagnose.records.codec import dumps
from diagnose.records.ranks import SERIES_NAMES, ScalingRecord
from diagnose.render import store
from diagnose.workload import Network
from tests.support.cli import ROOT, processes_with
from tests.support.rank_jobs import by_hand, finish, torchrun
from tests.support.records.experiments import ended
from tests.support.records.scaling import scaling_record

SCRIPT = "ddp_scaling.py"
STRIPES = ROOT / "bench" / "examples" / "my_job.py"
RANKS_JOB = ROOT / "tests" / "support" / "jobs" / "ranks.py"
# Freeing a group waits for gloo's thread, which may wait for the interpreter at that moment.
KEPT: list[object] = []
TRIED = ("accumulate_2", "static_graph_no_sync", "zero_optimizer")


def options(reports: Path) -> list[object]:
    return ["--smoke", "--device", "cpu", "--reports", reports, "--label", "ranks"]


def read(reports: Path) -> ScalingRecord:
    return store.load(reports / "ranks" / ScalingRecord.FILE_NAME, ScalingRecord)


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One whole run, started from a directory that is not the project's."""
    folder = tmp_path_factory.mktemp("scaling")
    words = ["--workload", STRIPES, "--size", "tiny", "--only", *TRIED]
    done = finish(torchrun(SCRIPT, *options(folder / "reports"), *words, cwd=folder))
    assert (done.code, done.left) == (0, ()), done.err
    return folder / "reports"


def test_the_ledger_the_link_and_what_surrounds_a_step_are_recorded(reports: Path) -> None:
    record = read(reports)
    assert record.complete
    assert record.culprit is None
    assert [each.name for each in record.series] == list(SERIES_NAMES)
    assert len({len(each.slot_seconds[0]) for each in record.series}) == 1
    for each in record.series:
        working = [len(slots) > 0 for slots in each.slot_seconds]
        assert working == [True, not each.name.startswith("alone")]
    # The link is measured at the sizes of the real buckets.
    assert sum(record.bucket_bytes) == record.gradient_bytes > 0
    assert {each.nbytes for each in record.curve} == set(record.bucket_bytes)
    assert all(each.status == "done" for each in record.curve)
    assert record.settings["input"] == "DistributedSampler"
    assert record.cadence is not None
    assert record.cadence.evaluation_seconds.value is not None
    assert record.cadence.saving_seconds.value is not None
    assert [each.reason for each in record.watts] == ["the CPU has no NVML"] * 2
    assert len(record.backward_seconds) > 0
    assert "accumulate" in (reports / "ranks" / "report.md").read_text()


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
        # The published form exchanges as often as none.
        exchanges = (row.facts["all_reduces_before"], row.facts["all_reduces_after"])
        assert exchanges == ((2, 1) if key[1] == "after" else (2, 2))


def test_an_option_that_fails_on_one_rank_is_a_row_and_the_rest_go_on(tmp_path: Path) -> None:
    words = ["--workload", RANKS_JOB, "--timeout", 12, "--json"]
    words += ["--only", "accumulate_4x32", "find_unused"]
    done = finish(torchrun(SCRIPT, *options(tmp_path), *words, extra={"FAULT": "quarter"}))
    assert done.code == 0, done.err
    record = read(tmp_path)
    rows = {each.key: each for each in record.comparisons}
    failed = rows["accumulate_4x32"]
    assert (failed.status, failed.before) == ("failed", None)
    assert failed.reason == "rank 1 ran out of memory (tried to allocate 9.00 GiB)"
    assert rows["find_unused"].status == "done"
    assert record.settings["input"] == "one synthetic batch: workload ranks has no datasets"
    verdicts = {each["name"]: each["verdict"] for each in json.loads(done.out)["options"]}
    assert verdicts["accumulate_4x32"] == "FAILED"


def find_rank(number: int, token: str) -> int:
    """The process that does the work of one rank."""
    for pid in processes_with(token):
        try:
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        is_member = any(word.endswith(b".member") for word in words)
        if is_member and f"RANK={number}".encode() in variables:
            return pid
    raise AssertionError(f"rank {number} does not run")


def test_what_was_measured_before_a_rank_is_killed_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "ranks" / ScalingRecord.FILE_NAME
    words = [*options(tmp_path), "--workload", RANKS_JOB, "--timeout", 20]
    with torchrun(SCRIPT, *words) as job:
        job.wait_until(lambda: path.exists() and read(tmp_path).comparisons, seconds=240)
        os.kill(find_rank(1, job.token), signal.SIGKILL)
        done = job.finish()
    assert (done.code, done.left) == (1, ()), "torchrun turns every failure into 1"
    record = read(tmp_path)
    assert record.culprit is not None
    assert (record.culprit.rank, record.culprit.reason) == (1, "was killed by SIGKILL")
    assert not record.complete
    assert record.comparisons
    assert len(record.series) == len(SERIES_NAMES)
    assert done.complaint.startswith("rank 1 was killed by SIGKILL during the ")
    assert f"{len(record.comparisons)} rows of options are in" in done.complaint


@pytest.fixture
def forms(tmp_path: Path) -> Iterator[Forms]:
    """The seven forms of a job with buffers, on a rank that is its own and only peer."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    KEPT.append(dist.group.WORLD)
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
            assert forms.ddp.require_forward_param_sync is sends


def test_no_form_changes_the_weights_or_leaves_gradients(forms: Forms) -> None:
    before = [each.clone() for each in forms.weights]
    for variant in forms.variants():
        variant.before_slot()
        variant.step()
        assert all(each.grad is None for each in forms.weights)
        assert all(torch.equal(a, b) for a, b in zip(forms.weights, before, strict=True))


def test_what_cannot_be_measured_is_refused_in_one_sentence(tmp_path: Path) -> None:
    words = ("--workload", RANKS_JOB, "--data", "x.txt")
    done = finish(by_hand(SCRIPT, *options(tmp_path), *words))
    assert done.code == 2, done.err
    assert "has no datasets, so --data has no use" in done.complaint


def test_only_without_a_name_leaves_out_every_option() -> None:
    parser = Parser()
    scaling.add_options(parser)
    assert parser.parse_args(["--only"]).only == []
    assert tuple(parser.parse_args([]).only) == KEYS


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
