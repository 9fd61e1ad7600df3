from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from diagnose.measure.gpu.nvml import Failure, answer_within
from tests.support.nvml_stub import run_python

# The device that torch would call 0 is the stub's last one: torch and NVML count differently.
DESCRIBE = """
import json
from diagnose.records.codec import to_dict
from diagnose.measure.gpu import describe as gpus, nvml
uuid = "{prefix}0abc000{number}-1111-2222-3333-00000000000{number}"
identity = nvml.Identity(0, "Stub GPU {number}", uuid, memory_bytes=5, compute_capability="8.6")
with nvml.open_session() as session:
    before = gpus.observe_before(session, seconds=0)
    gpu = gpus.describe_gpu(session, identity, "salt", before)
    print(json.dumps({{"stub": nvml.is_stub(session), **to_dict(gpu)}}))
"""
FIND = """
import json
from diagnose.measure.gpu import nvml
with nvml.open_session() as session:
    found = nvml.find_device(session, nvml.Identity({identity}))
    if isinstance(found, nvml.Failure):
        print(json.dumps({{"failure": found.reason}}))
    else:
        name = session.ask("nvmlDeviceGetName", found.handle)
        print(json.dumps({{"name": name, "doubt": found.doubt}}))
"""
OPEN = """
import json
from diagnose.measure.gpu import nvml
with nvml.open_session(patience_seconds=2) as session:
    failed = isinstance(session, nvml.Failure)
    print(json.dumps([session.case, session.reason] if failed else "open"))
"""
LINKS = """
import json
from diagnose.records.codec import to_dict
from diagnose.measure.gpu import describe as gpus, nvml
uuids = [f"0abc000{n}-1111-2222-3333-00000000000{n}" for n in range(4)]
with nvml.open_session() as session:
    known = [nvml.Identity(n, "", uuid) for n, uuid in enumerate(uuids)]
    print(json.dumps([to_dict(link) for link in gpus.describe_links(session, known)]))
"""
NO_DRIVER = {"STUB_NVML_FAIL": "nvmlInitWithFlags=12"}
UUID_0 = "0abc0000-1111-2222-3333-000000000000"


def describe(environment: dict[str, str], number: int = 0, prefix: str = "") -> dict[str, Any]:
    answer: dict[str, Any] = run_python(DESCRIBE.format(number=number, prefix=prefix), environment)
    return answer


@pytest.mark.parametrize(
    ("code", "advice"),
    [(9, "driver is not loaded"), (12, "libnvidia-ml.so.1 was not found"), (18, "reboot")],
)
def test_a_library_that_does_not_start_says_what_to_do(
    nvml_stub: dict[str, str], code: int, advice: str
) -> None:
    case, reason = run_python(OPEN, nvml_stub | {"STUB_NVML_FAIL": f"nvmlInitWithFlags={code}"})
    assert case == "unavailable"
    assert advice in reason


def test_a_driver_that_hangs_does_not_hang_the_run(nvml_stub: dict[str, str]) -> None:
    case, reason = run_python(OPEN, nvml_stub | {"STUB_NVML_HANG": "nvmlInitWithFlags"})
    assert case == "lost"
    assert "did not answer" in reason


def test_another_package_of_the_same_name_is_told_apart(tmp_path: Path) -> None:
    (tmp_path / "pynvml.py").write_text("def nvmlInit(): pass\n")
    case, reason = run_python(OPEN, {"PYTHONPATH": str(tmp_path)})
    assert case == "unavailable"
    assert "pip install nvidia-ml-py" in reason


def test_without_the_driver_a_gpu_still_has_what_torch_knows(nvml_stub: dict[str, str]) -> None:
    gpu = describe(nvml_stub | NO_DRIVER)
    assert gpu["name"] == "Stub GPU 0"
    assert gpu["memory_bytes"] == {"value": 5.0, "reason": ""}
    assert gpu["compute_capability"]["value"] == "8.6"
    assert gpu["uuid_hash"]
    assert gpu["power_limit_watts"]["value"] is None
    assert "libnvidia-ml.so.1" in gpu["power_limit_watts"]["reason"]
    assert "libnvidia-ml.so.1" in gpu["ecc"]["reason"]


def test_every_field_of_a_gpu_in_si_units(nvml_stub: dict[str, str]) -> None:
    gpu = describe(nvml_stub | {"STUB_NVML_USED_MIB": "777"})
    assert gpu.pop("stub") is True
    assert gpu.pop("name") == "Stub GPU 0"
    uuid_hash = gpu.pop("uuid_hash")
    assert len(uuid_hash) == 12
    assert uuid_hash not in UUID_0
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


def test_memory_that_the_driver_reserves_is_nobodys(nvml_stub: dict[str, str]) -> None:
    assert describe(nvml_stub)["memory_used_before_bytes"] == {"value": 8 << 20, "reason": ""}
    for code in (13, 25):
        old = {"STUB_NVML_FAIL": f"nvmlDeviceGetMemoryInfo_v2={code}"}
        gpu = describe(nvml_stub | old)
        assert gpu["memory_used_before_bytes"]["value"] == 608 << 20
        assert "driver reserves" in gpu["memory_used_before_bytes"]["reason"]
        assert gpu["memory_bytes"]["value"] == 16 << 30


def test_what_is_read_too_late_is_not_called_before(nvml_stub: dict[str, str]) -> None:
    code = DESCRIBE.replace(', "salt", before)', ', "salt", {{}})')
    gpu = run_python(code.format(number=0, prefix=""), nvml_stub)
    for name in ("memory_used_before_bytes", "utilization_before"):
        assert gpu[name]["value"] is None
        assert "not watched before" in gpu[name]["reason"]
    assert gpu["memory_bytes"]["value"] == 16 << 30


def test_the_hash_does_not_depend_on_who_tells_the_uuid(nvml_stub: dict[str, str]) -> None:
    hashes = {describe(each)["uuid_hash"] for each in (nvml_stub, nvml_stub | NO_DRIVER)}
    assert len(hashes) == 1
    assert describe(nvml_stub, number=1)["uuid_hash"] not in hashes


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
def test_one_failing_question_leaves_the_others(
    nvml_stub: dict[str, str], code: int, case: str
) -> None:
    failing = ",".join(
        f"nvmlDeviceGet{name}={code}" for name in ("MemoryInfo", "MemoryInfo_v2", "EccMode")
    )
    gpu = describe(nvml_stub | {"STUB_NVML_FAIL": failing})
    for name in ("memory_bytes", "memory_used_before_bytes", "ecc"):
        assert gpu[name]["value"] is None
        assert gpu[name]["reason"].startswith(case)
        assert f"NVML error {code}" in gpu[name]["reason"]
    assert gpu["sm_hertz_max"]["value"] == 1.98e9
    assert gpu["mig"]["value"] == "off"


def find(environment: dict[str, str], identity: str) -> dict[str, str]:
    answer: dict[str, str] = run_python(FIND.format(identity=identity), environment)
    return answer


@pytest.mark.parametrize("prefix", ["", "GPU-"])
def test_a_uuid_finds_its_gpu_although_the_order_differs(
    nvml_stub: dict[str, str], prefix: str
) -> None:
    found = find(nvml_stub, f"0, '', '{prefix}{UUID_0}'")
    assert found == {"name": "Stub GPU 0", "doubt": ""}


def test_a_uuid_is_searched_if_it_cannot_be_asked_for(nvml_stub: dict[str, str]) -> None:
    failing = {"STUB_NVML_FAIL": "nvmlDeviceGetHandleByUUID=13"}
    assert find(nvml_stub | failing, f"0, '', '{UUID_0}'")["name"] == "Stub GPU 0"


def test_an_unknown_uuid_is_not_replaced_by_a_guess(nvml_stub: dict[str, str]) -> None:
    assert "knows no such device" in find(nvml_stub, "0, '', 'ffff'")["failure"]


def test_a_pci_address_finds_its_gpu(nvml_stub: dict[str, str]) -> None:
    found = find(nvml_stub, "0, '', None, '00000000:02:00.0'")
    assert found == {"name": "Stub GPU 0", "doubt": ""}


def test_a_pci_address_of_an_unknown_uuid_may_be_the_parent(nvml_stub: dict[str, str]) -> None:
    found = find(nvml_stub, "0, '', 'MIG-ffff', '00000000:02:00.0'")
    assert found["name"] == "Stub GPU 0"
    assert "MIG slice" in found["doubt"]
    # The address is not asked for while the UUID can be searched.
    failing = {"STUB_NVML_FAIL": "nvmlDeviceGetHandleByUUID=13"}
    sure = find(nvml_stub | failing, f"0, '', '{UUID_0}', '00000000:01:00.0'")
    assert sure == {"name": "Stub GPU 0", "doubt": ""}


@pytest.mark.parametrize("identity", [f"0, '', '{UUID_0}'", "0, '', None, '00000000:02:00.0'"])
def test_a_gpu_that_is_cut_into_slices_is_in_doubt(
    nvml_stub: dict[str, str], identity: str
) -> None:
    found = find(nvml_stub | {"STUB_NVML_MIG": "1"}, identity)
    assert found["name"] == "Stub GPU 0"
    assert "MIG is on" in found["doubt"]


def test_a_doubt_reaches_the_description(nvml_stub: dict[str, str]) -> None:
    gpu = describe(nvml_stub | {"STUB_NVML_MIG": "1"})
    assert gpu["nvml_index"]["value"] == 1
    assert "MIG is on" in gpu["nvml_index"]["reason"]
    assert gpu["mig"]["value"] == "on"


def test_a_position_is_the_last_resort_and_in_doubt(nvml_stub: dict[str, str]) -> None:
    found = find(nvml_stub, "0, ''")
    assert found["name"] == "Stub GPU 1"
    assert "position only" in found["doubt"]


def test_a_position_with_another_name_is_refused(nvml_stub: dict[str, str]) -> None:
    assert "CUDA_DEVICE_ORDER" in find(nvml_stub, "0, 'Stub GPU 0'")["failure"]


def test_links_are_named_like_nvidia_smi_names_them(nvml_stub: dict[str, str]) -> None:
    links = run_python(LINKS, nvml_stub | {"STUB_NVML_COUNT": "4", "STUB_NVML_NVLINK": "1"})
    kinds = {(it["first"], it["second"]): it["kind"]["value"] for it in links}
    # NVML's indices run against these: its pair (0, 1) is ours (3, 2).
    apart = dict.fromkeys([(0, 2), (0, 3), (1, 2), (1, 3)], "SYS")
    assert kinds == {(0, 1): "PIX", (2, 3): "NVLINK", **apart}
    peers = {(it["first"], it["second"]): it["peer_to_peer"]["value"] for it in links}
    assert peers[0, 1] == "OK"
    assert peers[0, 2] == "chipset not supported"


def test_links_without_topology_have_a_reason(nvml_stub: dict[str, str]) -> None:
    failing = "nvmlDeviceGetTopologyCommonAncestor=3,nvmlDeviceGetNvLinkState=3"
    links = run_python(LINKS, nvml_stub | {"STUB_NVML_FAIL": failing})
    assert len(links) == 1
    assert links[0]["kind"]["value"] is None
    assert links[0]["kind"]["reason"].startswith("unsupported")


def test_an_error_in_a_question_is_not_taken_for_silence() -> None:
    def wrong() -> int:
        raise KeyError("a mistake of ours")

    with pytest.raises(KeyError):
        answer_within(5, wrong)
    assert not isinstance(answer_within(5, lambda: 1), Failure)
