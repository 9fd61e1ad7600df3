"""The whole path on a device that is not the CPU: fake GPU, NVML stub, real program."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import (
    FAULTY,
    Outcome,
    diagnose,
    diagnose_here,
    read_record,
    reason,
    statuses,
)
from tests.support.script_runs import line_of, write_script

# Device number 0 of the stub, which NVML counts last: found by UUID or not at all.
UUID = "0abc0000-1111-2222-3333-000000000000"
DRAWS_WATTS = (100.0, 300.0)


def run_on_fake(reports: Path, environment: Mapping[str, str], *stages: str) -> Outcome:
    return diagnose(
        "run", "--workload", FAULTY, "--device", "fakegpu", "--smoke", "--reports", reports,
        "--label", "fake", "--stages", *(stages or ("inference",)),
        **environment,
    )  # fmt: skip


@pytest.fixture
def stubbed(fakegpu_env: dict[str, str], nvml_stub: dict[str, str]) -> dict[str, str]:
    return {**fakegpu_env, **nvml_stub, "FAKEGPU_UUID": UUID}


def use_of(reports: Path, stage: str = "inference") -> dict[str, Any]:
    record = read_record(reports, "fake")
    found = next(each for each in record["stages"] if each["key"] == stage)
    (use,) = found["measurements"][0]["gpus"]
    assert isinstance(use, dict)
    return use


@pytest.fixture(scope="module")
def whole(fakegpu_env: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The reports of a run of every stage, on a machine without NVML."""
    reports = tmp_path_factory.mktemp("whole")
    ladder = ("ceilings", "inference", "training", "precision", "loader", "real_data")
    outcome = run_on_fake(reports, fakegpu_env, *ladder)
    assert outcome.code == 0, outcome.err
    return reports


def test_every_stage_runs_on_an_accelerator(whole: Path) -> None:
    record = read_record(whole, "fake")
    assert set(statuses(record).values()) == {"done"}
    ceilings, *_, loader, real_data = record["stages"]
    copies = [m for m in ceilings["measurements"] if m["settings"]["ceiling"] == "copy"]
    assert [m["settings"]["pinned"] for m in copies] == [True, False]
    pinned = [m["settings"]["pin_memory"] for m in loader["measurements"]]
    assert pinned == [True] * 4 + [False], "one without, to see what pinning is worth"
    peak = real_data["measurements"][0]["peak_bytes"]["value"]
    assert 0 < peak < 1e6, "the allocator's bytes, not the process's"


def test_the_sampled_gpu_is_the_one_that_was_measured(
    tmp_path: Path, stubbed: dict[str, str]
) -> None:
    forbidden = {"STUB_NVML_FAIL": "nvmlDeviceGetUtilizationRates=4"}
    assert run_on_fake(tmp_path, {**stubbed, **forbidden}).code == 0
    record = read_record(tmp_path, "fake")
    where = record["header"]["machine"]
    assert (where["nvml"]["value"], where["versions"]["driver"]["value"]) == ("stub", "999.01")
    (gpu,) = where["gpus"]
    assert gpu["nvml_index"]["value"] == 1, "the stub's order is not torch's"
    assert UUID not in (tmp_path / "fake" / "run.json").read_text()
    use = use_of(tmp_path)
    low, high = DRAWS_WATTS
    assert low <= use["idle_watts"]["value"] <= high, "number 1 would draw twice as much"
    assert gpu["power_limit_watts"]["value"] > 0
    assert record["stages"][0]["power"][0]["watts"]
    # A question that is forbidden leaves the others.
    assert use["utilization"]["value"] is None
    assert "may not read it" in use["utilization"]["reason"]
    assert "may not read it" in gpu["utilization_before"]["reason"]


def test_results_of_a_fake_device_never_pass_the_check(whole: Path) -> None:
    assert read_record(whole, "fake")["header"]["source"] == "fake device"
    assert "Not a result" in (whole / "fake" / "report.md").read_text()
    outcome = diagnose_here("check", "--allow-dirty", "--reports", whole)
    assert outcome.code == 1
    assert "fake device" in outcome.err


def test_a_card_that_another_process_holds_is_told(
    tmp_path: Path, fakegpu_env: dict[str, str]
) -> None:
    lock = tmp_path / "lock"
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        outcome = run_on_fake(tmp_path, {**fakegpu_env, "FAKEGPU_EXCLUSIVE": str(lock)})
    assert outcome.code == 3
    assert "another one holds it; end that one, or let in more" in outcome.complaint
    assert not (tmp_path / "fake").exists()


def test_without_nvml_the_run_goes_on_and_says_why(whole: Path) -> None:
    missing = "libnvidia-ml.so.1"
    assert missing in use_of(whole)["watts"]["reason"]
    assert missing in read_record(whole, "fake")["header"]["machine"]["nvml"]["reason"]
    assert missing in (whole / "fake" / "report.md").read_text()


def test_a_gpu_lost_in_the_middle_costs_only_its_samples(
    tmp_path: Path, stubbed: dict[str, str]
) -> None:
    lost = {"STUB_NVML_FAIL_AFTER": "*=15@nvmlDeviceGetComputeMode"}  # once it is described
    assert run_on_fake(tmp_path, {**stubbed, **lost}, "inference", "training").code == 0
    record = read_record(tmp_path, "fake")
    assert set(statuses(record).values()) == {"done"}
    (gpu,) = record["header"]["machine"]["gpus"]
    assert gpu["power_limit_watts"]["value"] > 0
    assert "fallen off the bus" in use_of(tmp_path, "training")["joules"]["reason"]


def test_an_exhausted_device_fails_its_stage_and_the_next_is_fine(
    tmp_path: Path, fakegpu_env: dict[str, str]
) -> None:
    small = {"FAKEGPU_LIMIT_BYTES": str(300 * 2**20)}
    outcome = run_on_fake(tmp_path, {**fakegpu_env, **small}, "ceilings", "inference")
    assert outcome.code == 3
    record = read_record(tmp_path, "fake")
    assert statuses(record) == {"ceilings": "failed", "inference": "done"}
    assert reason(record, "ceilings").startswith("out of memory: ")


TRAINS_ON_THE_DEVICE = """
import torch

torch.manual_seed(0)
device = torch.accelerator.current_accelerator()
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
model.to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
rows = torch.utils.data.TensorDataset(torch.randn(256, 64))
while True:
    for (x,) in torch.utils.data.DataLoader(rows, batch_size=8):
        x = x.to(device)
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        sum(number * number for number in range(150_000))  # here
"""


@pytest.mark.alone
def test_a_script_that_trains_on_an_accelerator_is_diagnosed(
    fakegpu_env: dict[str, str], tmp_path: Path
) -> None:
    script = write_script(tmp_path, TRAINS_ON_THE_DEVICE)
    answer = tmp_path / "answer.json"
    outcome = diagnose("script", "--seconds", "4", "--json", answer, script, **fakegpu_env)
    assert (outcome.code, outcome.out) == (0, ""), outcome.err
    told = json.loads(answer.read_text(encoding="utf-8"))
    first = told["findings"][0]
    assert (first["cause"], first["line"]) == ("host", line_of(script, "# here")), told
    # Whether a phase much shorter than the time between two samples is seen is a matter of chance.
    assert max(told["phases"], key=told["phases"].get) == "host", told["phases"]
    assert told["notes"] == [
        "the device's own time is not known: the profiler saw no work of the device"
    ]
