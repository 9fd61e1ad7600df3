from __future__ import annotations

import json
import os
import platform
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import torch

from diagnose.measure.gpu.nvml import Failure, Identity
from diagnose.measure.machine import describe as machine
from diagnose.measure.machine.cuda import read_identities
from diagnose.measure.machine.device import DeviceError, open_device, open_visible_device
from diagnose.measure.machine.environment import choose_environment
from diagnose.records.codec import dumps, from_dict, to_dict
from diagnose.records.header import HIDDEN, Machine
from tests.measure.conftest import Stub
from tests.support.cli import git
from tests.support.nvml_stub import run_python

SECRETS = {
    "AWS_SECRET_ACCESS_KEY": "sekret-aws-4711",
    "HF_TOKEN": "hf_sekret_0815",
    "NCCL_COMM_ID": "10.1.2.3:55",
    "NCCL_HOSTID": "node17",
    "NCCL_TOPO_FILE": "/home/planted-user/topo.xml",
    "NCCL_NET_TOKEN": "sekret-net",
    "NCCL_SOCKET_IFNAME": "planted-host-eth",
    "NCCL_IB_HCA": "fe80::1:2",
    "NCCL_DEBUG_FILE": "nccl-planted-user.log",
    "CUDA_VISIBLE_DEVICES": "GPU-0abc0000-1111-2222-3333-000000000000",
    "MALLOC_CONF": "prof:true " + "x" * 300,
    "LD_PRELOAD": "/home/planted-user/lib/libjemalloc.so:/opt/planted-user/b.so",
    "HOME": "/home/planted-user",
    "USER": "planted-user",
    "LOGNAME": "planted-user",
    "HOSTNAME": "planted-host.example.org",
}
TRACES_OF_SECRETS = (
    "sekret",
    "10.1.2.3",
    "node17",
    "planted",
    "fe80",
    "0abc0000",
    "xxxx",
    "example.org",
    "/home",
)


@pytest.fixture(autouse=True)
def briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "BUSY_SECONDS", 0.05)


def bare_machine() -> Machine:
    return machine.probe("cpu", Path("/nonexistent"))


def test_no_secret_and_no_identity_is_in_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(platform, "node", lambda: "planted-node")
    monkeypatch.setenv("NCCL_ALGO", "planted-node")
    text = dumps(machine.probe("cpu")).decode()
    assert [trace for trace in TRACES_OF_SECRETS if trace in text] == []
    assert "AWS" not in text
    assert json.loads(text)["environment"]["NCCL_COMM_ID"] == HIDDEN


def test_a_machine_survives_json() -> None:
    probed = machine.probe("cpu")
    assert from_dict(Machine, json.loads(dumps(probed))) == probed
    assert probed.device == "cpu"
    assert probed.cpu_cores == machine.count_cores() >= 1
    assert probed.versions["torch"].value
    assert probed.versions["cuda"].value or probed.versions["cuda"].reason


def test_cores_are_counted_where_the_system_tells_no_affinity(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 5, 6}, raising=False)
    assert machine.count_cores() == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 12)
    assert machine.count_cores() == 12
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert machine.count_cores() == 1


def test_settings_that_change_the_speed_are_shown() -> None:
    shown = {
        "NCCL_P2P_DISABLE": "1",
        "NCCL_SOCKET_IFNAME": "eth0",
        "NCCL_IB_HCA": "mlx5_0:1,mlx5_1:1",
        "OMP_NUM_THREADS": "8",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True,max_split_size_mb:128",
        "CUDA_VISIBLE_DEVICES": "1,0",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3",
        "NVIDIA_TF32_OVERRIDE": "0",
        "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1",
    }
    assert choose_environment(shown | {"PATH": "/usr/bin", "OMP_DISPLAY_ENV": "1"}) == shown


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("LD_PRELOAD", "/usr/lib/libtcmalloc.so.4:/opt/a/libx.so", "libtcmalloc.so.4,libx.so"),
        ("CUDA_VISIBLE_DEVICES", "GPU-0abc-1,MIG-0abc-2", f"GPU-{HIDDEN},MIG-{HIDDEN}"),
    ],
)
def test_only_the_harmless_part_of_a_value_is_shown(name: str, value: str, shown: str) -> None:
    assert choose_environment({name: value}) == {name: shown}


def test_a_machine_is_read_from_its_files(tmp_path: Path) -> None:
    bare = bare_machine()
    for it in (bare.cpu_model, bare.cpu_governor, bare.container, bare.shared_memory_bytes):
        assert it.value is None
        assert it.reason
    assert bare.device_name == "unknown cpu"
    files = {
        "proc/cpuinfo": "processor : 0\nmodel name\t: A CPU @ 2 GHz\nprocessor : 1\n",
        "proc/1/cgroup": "0::/kubepods/pod1234/abcdef\n",
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    probed = machine.probe("cpu", tmp_path)
    assert probed.cpu_model.value == probed.device_name == "A CPU @ 2 GHz"
    assert probed.container.value == "kubepods"
    assert probed.cpu_governor.value == "powersave"
    (tmp_path / ".dockerenv").touch()
    assert machine.find_container(tmp_path).value == "docker"


def test_memory_and_busy_processors_are_what_the_system_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    probed = machine.probe("cpu")
    assert probed.memory_bytes.value == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert probed.cpu_busy_before.value is not None
    assert 0 <= probed.cpu_busy_before.value <= 1
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path))
    silent = machine.probe("cpu")
    for reading in (silent.memory_bytes, silent.cpu_busy_before):
        assert reading.value is None
        assert "cannot be read" in reading.reason


@pytest.mark.parametrize(
    ("release", "shown"),
    [("6.1.0-17-amd64", "Linux 6.1.0 x86_64"), ("custom-of-planted", "Linux unknown x86_64")],
)
def test_a_kernel_release_is_cut_to_its_numbers(release: str, shown: str) -> None:
    assert machine.describe_system("Linux", release, "x86_64") == shown


def make_repository(path: Path) -> str:
    git(path, "init", "--quiet")
    (path / "reports").mkdir()
    (path / "reports/README.md").write_text("one")
    (path / "code.py").write_text("one")
    git(path, "add", ".")
    git(path, "commit", "--quiet", "-m", "one")
    return git(path, "rev-parse", "--short=12", "HEAD")


def test_a_commit_is_dirty_if_code_differs_and_not_if_a_report_does(tmp_path: Path) -> None:
    commit = make_repository(tmp_path)
    assert machine.read_commit(tmp_path).value == commit
    (tmp_path / "reports/README.md").write_text("two")
    (tmp_path / "new.py").write_text("untracked")
    assert machine.read_commit(tmp_path).value == commit
    (tmp_path / "code.py").write_text("two")
    assert machine.read_commit(tmp_path).value == f"{commit}-dirty"


def test_the_trees_of_the_code_survive_a_squash(tmp_path: Path) -> None:
    assert machine.read_trees(tmp_path) == {}
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "code.py").write_text("one")
    make_repository(tmp_path)
    found = machine.read_trees(tmp_path)
    assert list(found) == ["bench"]
    git(tmp_path, "commit", "--quiet", "--amend", "-m", "another")
    assert machine.read_trees(tmp_path) == found


def test_a_script_belongs_to_the_repository_around_it(tmp_path: Path) -> None:
    assert machine.find_repository(tmp_path / "train.py") == tmp_path
    repository = tmp_path / "work"
    repository.mkdir()
    commit = make_repository(repository)
    script = repository / "jobs" / "deep" / "train.py"
    assert machine.find_repository(script) == repository
    assert machine.read_commit(machine.find_repository(script)).value == commit


def test_no_commit_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "not a git checkout" in machine.read_commit(tmp_path).reason
    (tmp_path / ".git").mkdir()
    assert "could not read" in machine.read_commit(tmp_path).reason
    monkeypatch.setenv("PATH", str(tmp_path))
    assert machine.read_commit(tmp_path).reason == "git is not installed"


@dataclass(frozen=True)
class Properties:
    """What torch tells of a CUDA device."""

    name: str = "A GPU"
    uuid: str = "0abc"
    total_memory: int = 8
    major: int = 9
    minor: int = 0
    pci_domain_id: int = 0
    pci_bus_id: int = 0x4B
    pci_device_id: int = 1


class TorchModule:
    def device_count(self) -> int:
        return 2

    def get_device_properties(self, index: int) -> Properties:
        return Properties(uuid=f"uuid-{index}")


class SilentModule:
    def device_count(self) -> int:
        return 1


def test_devices_are_identified_by_their_own_torch_module() -> None:
    first, second = read_identities(TorchModule())
    assert first == Identity(0, "A GPU", "uuid-0", "00000000:4B:01.0", 8, "9.0")
    assert (second.index, second.uuid) == (1, "uuid-1")
    assert from_dict(Identity, to_dict(first)) == first
    assert read_identities(SilentModule()) == (Identity(0, ""),)
    assert machine.identities("cpu") == ()


def test_without_nvml_the_machine_has_its_gpus_and_the_reason() -> None:
    failure = Failure("unavailable", "unavailable: no driver")
    full = machine.with_gpus(bare_machine(), failure, [Identity(0, "A GPU")], "salt")
    assert full.gpus[0].name == "A GPU"
    assert full.gpus[0].power_limit_watts.reason == "unavailable: no driver"
    assert full.versions["driver"].reason == "unavailable: no driver"
    assert full.nvml.value is None
    alone = machine.with_gpus(bare_machine(), failure, [], "salt")
    assert (alone.gpus, alone.gpus_reason) == ((), "the run uses no GPU")


CHECK_TORCH = """
import json, sys
{block}
from diagnose.measure.machine.torch_check import UnusableTorch, require_torch, torch_problem
problem = torch_problem()
assert sys.modules.get("torch") is None
try:
    require_torch()
    refused = ""
except UnusableTorch as error:
    refused = str(error)
print(json.dumps([problem, refused]))
"""
MISSING = 'sys.modules["torch"] = None'
BROKEN = 'raise ImportError("libcudart.so.12: cannot open shared object file\\nmore")'
NOT_INSTALLED = "torch is not installed in this Python; install it"
NOT_IMPORTABLE = "torch is installed but cannot be imported (libcudart.so.12: cannot open shared"
TOO_OLD = "torch {} is too old: diagnose needs 2.6"


@pytest.mark.parametrize(
    ("block", "module", "metadata", "problem", "refused"),
    [
        (MISSING, "", "", NOT_INSTALLED, NOT_INSTALLED),
        ("", BROKEN, "2.9.0", "", NOT_IMPORTABLE),
        # Without metadata of its own that of the torch that these tests run with is found.
        ("", '__version__ = "2.5.1"', "", "", TOO_OLD.format("2.5.1")),
        *(
            ("", f'__version__ = "{old}"', old, TOO_OLD.format(old), TOO_OLD.format(old))
            for old in ("2.5.1", "1.13", "odd")
        ),
        *(("", f'__version__ = "{new}"', new, "", "") for new in ("2.6.0a0+git123", "10.0")),
    ],
)
def test_a_torch_that_cannot_be_used_is_one_sentence(
    tmp_path: Path, block: str, module: str, metadata: str, problem: str, refused: str
) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text(module)
    if metadata:
        (tmp_path / "torch-0.dist-info").mkdir()
        text = f"Name: torch\nVersion: {metadata}\n"
        (tmp_path / "torch-0.dist-info/METADATA").write_text(text)
    said = run_python(CHECK_TORCH.format(block=block), {"PYTHONPATH": str(tmp_path)})
    for sentence, expected in zip(said, (problem, refused), strict=True):
        assert sentence.startswith(expected)
        assert bool(sentence) == bool(expected)
        assert "\n" not in sentence


@pytest.mark.skipif(torch.accelerator.is_available(), reason="torch sees an accelerator")
@pytest.mark.parametrize(
    ("kind", "variables", "refused"),
    [
        (None, {}, True),
        (None, {"STUB_NVML_FAIL": "nvmlSystemGetCudaDriverVersion_v2=13"}, True),
        ("cpu", {}, False),
        (None, {"CUDA_VISIBLE_DEVICES": ""}, False),
        (None, {"CUDA_VISIBLE_DEVICES": "-1"}, False),
        (None, {"STUB_NVML_COUNT": "0"}, False),
        (None, {"STUB_NVML_FAIL": "nvmlInitWithFlags=12"}, False),
    ],
)
def test_gpus_that_torch_does_not_see_are_not_passed_over(
    stub: Stub,
    monkeypatch: pytest.MonkeyPatch,
    kind: str | None,
    variables: dict[str, str],
    refused: bool,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert open_visible_device().is_cpu
    if not refused:
        assert open_device(kind).is_cpu
        return
    with pytest.raises(DeviceError) as raised:
        open_device(kind)
    answer = str(raised.value)
    assert answer.startswith("this machine has 2 NVIDIA GPUs but torch sees none")
    assert "driver is 999.01" in answer
    assert ("(CUDA 12.2)" in answer) == (not variables)
    assert f"torch {torch.__version__} is built" in answer
    assert "--device cpu" in answer
