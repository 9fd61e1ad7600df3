from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import pytest

from diagnose.measure.gpu import describe as gpus
from diagnose.measure.gpu import nvml
from diagnose.measure.gpu.nvml import Failure, Found, Identity, answer_within
from diagnose.records.header import Gpu
from tests.measure.conftest import Stub
from tests.support.nvml_stub import run_python

OPEN = """
import json
from diagnose.measure.gpu import nvml
with nvml.open_session(patience_seconds=2) as session:
    failed = isinstance(session, nvml.Failure)
    print(json.dumps([session.case, session.reason] if failed else ["open", ""]))
"""
UUIDS = [f"0abc000{n}-1111-2222-3333-00000000000{n}" for n in range(4)]
# The device that torch would call 0 is the stub's last one: torch and NVML count differently.
FIRST = Identity(0, "Stub GPU 0", UUIDS[0], memory_bytes=5, compute_capability="8.6")
NO_DRIVER = "nvmlInitWithFlags=12"
OLD_MEMORY = "nvmlDeviceGetMemoryInfo_v2"


def describe(identity: Identity = FIRST, before: Mapping[str, gpus.Before] | None = None) -> Gpu:
    with nvml.open_session() as session:
        seen = gpus.observe_before(session, seconds=0) if before is None else before
        return gpus.describe_gpu(session, identity, "salt", seen)


@pytest.mark.parametrize(
    ("variables", "case", "advice"),
    [
        ({}, "open", ""),
        ({"STUB_NVML_FAIL": "nvmlInitWithFlags=9"}, "unavailable", "driver is not loaded"),
        ({"STUB_NVML_FAIL": NO_DRIVER}, "unavailable", "libnvidia-ml.so.1 was not found"),
        ({"STUB_NVML_FAIL": "nvmlInitWithFlags=18"}, "unavailable", "reboot"),
        ({"STUB_NVML_HANG": "nvmlInitWithFlags"}, "lost", "did not answer"),
    ],
)
def test_a_library_that_does_not_start_says_what_to_do_and_hangs_nothing(
    nvml_stub: dict[str, str], variables: dict[str, str], case: str, advice: str
) -> None:
    answer, reason = run_python(OPEN, nvml_stub | variables)
    assert answer == case
    assert advice in reason


def test_another_package_of_the_same_name_is_told_apart(tmp_path: Path) -> None:
    (tmp_path / "pynvml.py").write_text("def nvmlInit(): pass\n")
    case, reason = run_python(OPEN, {"PYTHONPATH": str(tmp_path)})
    assert case == "unavailable"
    assert "pip install nvidia-ml-py" in reason


def test_without_the_driver_a_gpu_still_has_what_torch_knows(stub: Stub) -> None:
    stub(FAIL=NO_DRIVER)
    gpu = describe()
    assert (gpu.name, gpu.memory_bytes.value, gpu.memory_bytes.reason) == ("Stub GPU 0", 5.0, "")
    assert gpu.compute_capability.value == "8.6"
    for unknown in (gpu.power_limit_watts, gpu.ecc, gpu.utilization_before):
        assert unknown.value is None
        assert "libnvidia-ml.so.1" in unknown.reason


def test_every_field_of_a_gpu_in_si_units(stub: Stub) -> None:
    stub(USED_MIB=777)
    gpu = asdict(describe())
    assert gpu.pop("name") == "Stub GPU 0"
    assert len(gpu.pop("uuid_hash")) == 12
    assert "not detected" in gpu.pop("energy_period_seconds")["reason"]
    assert {name: field["value"] for name, field in gpu.items()} == {
        "nvml_index": 1.0,
        "memory_bytes": float(16 << 30),
        "memory_used_before_bytes": float(777 << 20),
        "utilization_before": 0.4,
        "power_limit_watts": 350.0,
        "power_limit_default_watts": 400.0,
        "power_limit_min_watts": 100.0,
        "power_limit_max_watts": 450.0,
        "sm_hertz_max": 1.98e9,
        "memory_hertz_max": 2.619e9,
        "pcie_generation": 4.0,
        "pcie_generation_max": 5.0,
        "pcie_width": 8.0,
        "pcie_width_max": 16.0,
        "compute_capability": "9.0",
        "ecc": "on",
        "mig": "off",
        "persistence": "on",
        "compute_mode": "default",
    }


def test_memory_that_the_driver_reserves_is_nobodys(stub: Stub) -> None:
    assert asdict(describe().memory_used_before_bytes) == {"value": 8 << 20, "reason": ""}
    for code in (13, 25):
        stub(FAIL=f"{OLD_MEMORY}={code}")
        used = describe().memory_used_before_bytes
        assert used.value == 608 << 20
        assert "driver reserves" in used.reason


def test_what_is_read_too_late_is_not_called_before(stub: Stub) -> None:
    gpu = describe(before={})
    for reading in (gpu.memory_used_before_bytes, gpu.utilization_before):
        assert reading.value is None
        assert "not watched before" in reading.reason
    assert gpu.memory_bytes.value == 16 << 30


def test_the_hash_tells_gpus_apart_whoever_tells_the_uuid(stub: Stub) -> None:
    seen = describe().uuid_hash
    assert seen not in UUIDS[0]
    assert describe(Identity(1, "", UUIDS[1])).uuid_hash != seen
    stub(FAIL=NO_DRIVER)
    assert describe().uuid_hash == seen


@pytest.mark.parametrize(
    ("code", "case"),
    [
        (1, "lost"),
        (3, "unsupported"),
        (4, "no permission"),
        (13, "unsupported"),
        (15, "lost"),
        (17, "no permission"),
        (999, "lost"),
        (4711, "unsupported"),
    ],
)
def test_one_failing_question_leaves_the_others(stub: Stub, code: int, case: str) -> None:
    names = ("MemoryInfo", "MemoryInfo_v2", "EccMode")
    stub(FAIL=",".join(f"nvmlDeviceGet{name}={code}" for name in names))
    gpu = describe()
    for failed in (gpu.memory_bytes, gpu.memory_used_before_bytes, gpu.ecc):
        assert failed.value is None
        assert failed.reason.startswith(case)
        assert f"NVML error {code}" in failed.reason
    assert gpu.power_limit_watts.value == 350


NO_UUID_CALL = "nvmlDeviceGetHandleByUUID=13"
ADDRESS_0, ADDRESS_1 = "00000000:02:00.0", "00000000:01:00.0"


@pytest.mark.parametrize(
    ("identity", "variables", "name", "doubt"),
    [
        (Identity(0, "", UUIDS[0]), {}, "Stub GPU 0", ""),
        (Identity(0, "", f"GPU-{UUIDS[0]}"), {}, "Stub GPU 0", ""),
        # Searched where it cannot be asked for, and before the address is.
        (Identity(0, "", UUIDS[0], ADDRESS_1), {"FAIL": NO_UUID_CALL}, "Stub GPU 0", ""),
        (Identity(0, "", None, ADDRESS_0), {}, "Stub GPU 0", ""),
        (Identity(0, "", "MIG-ffff", ADDRESS_0), {}, "Stub GPU 0", "MIG slice"),
        (Identity(0, "", UUIDS[0]), {"MIG": 1}, "Stub GPU 0", "MIG is on"),
        (Identity(0, "", None, ADDRESS_0), {"MIG": 1}, "Stub GPU 0", "MIG is on"),
        (Identity(0, ""), {}, "Stub GPU 1", "position only"),
    ],
    ids=str,
)
def test_a_gpu_is_found_by_what_torch_knows_of_it(
    stub: Stub, identity: Identity, variables: dict[str, object], name: str, doubt: str
) -> None:
    stub(**variables)
    with nvml.open_session() as session:
        found = nvml.find_device(session, identity)
        assert isinstance(found, Found)
        assert found.ask("nvmlDeviceGetName") == name
    assert doubt in found.doubt
    assert bool(doubt) == bool(found.doubt)


@pytest.mark.parametrize(
    ("identity", "reason"),
    [
        (Identity(0, "", "ffff"), "knows no such device"),
        (Identity(0, "Stub GPU 0"), "CUDA_DEVICE_ORDER"),
    ],
)
def test_a_gpu_that_is_not_found_is_not_guessed(
    stub: Stub, identity: Identity, reason: str
) -> None:
    with nvml.open_session() as session:
        found = nvml.find_device(session, identity)
    assert isinstance(found, Failure)
    assert reason in found.reason


def test_a_doubt_reaches_the_description(stub: Stub) -> None:
    stub(MIG=1)
    gpu = describe()
    assert (gpu.nvml_index.value, gpu.mig.value) == (1, "on")
    assert "MIG is on" in gpu.nvml_index.reason


def test_links_are_named_like_nvidia_smi_names_them(stub: Stub) -> None:
    stub(COUNT=4, NVLINK=1)
    with nvml.open_session() as session:
        links = gpus.describe_links(session, [Identity(n, "", it) for n, it in enumerate(UUIDS)])
    # NVML's indices run against these: its pair (0, 1) is ours (3, 2).
    apart = dict.fromkeys([(0, 2), (0, 3), (1, 2), (1, 3)], "SYS")
    kinds = {(it.first, it.second): it.kind.value for it in links}
    assert kinds == {(0, 1): "PIX", (2, 3): "NVLINK", **apart}
    peers = {(it.first, it.second): it.peer_to_peer.value for it in links}
    assert (peers[0, 1], peers[0, 2]) == ("OK", "chipset not supported")


def test_links_without_topology_have_a_reason(stub: Stub) -> None:
    stub(FAIL="nvmlDeviceGetTopologyCommonAncestor=3,nvmlDeviceGetNvLinkState=3")
    with nvml.open_session() as session:
        # Only two of these four are there.
        links = gpus.describe_links(session, [Identity(n, "", it) for n, it in enumerate(UUIDS)])
    (link,) = links
    assert link.kind.value is None
    assert link.kind.reason.startswith("unsupported")


def test_an_error_in_a_question_is_not_taken_for_silence() -> None:
    def wrong() -> int:
        raise KeyError("a mistake of ours")

    with pytest.raises(KeyError):
        answer_within(5, wrong)
    assert answer_within(5, lambda: 1) == 1
