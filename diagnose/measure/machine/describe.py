"""Where is it measured? The machine as a record shows it: enough to compare, nothing private.

`probe` runs in the measuring process, which has torch. `with_gpus` runs in the supervising one,
which has NVML and no torch.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import psutil

from diagnose.measure.gpu import describe as gpus
from diagnose.measure.gpu import nvml
from diagnose.measure.gpu.nvml import Failure, Identity, Session
from diagnose.measure.machine.environment import choose_environment
from diagnose.records.header import Fact, Machine, Reading

PROJECT = Path(__file__).resolve().parents[3]
ROOT = Path("/")
BUSY_SECONDS = 0.5  # fifty scheduler ticks: enough to see another job, short enough to wait for
_GIT_SECONDS = 10.0
CODE_FOLDERS = ("diagnose", "bench")
_CONTAINERS = re.compile(r"docker|kubepods|containerd|libpod|lxc")


def identities(device_type: str) -> tuple[Identity, ...]:
    """Every device of this type that torch sees, in torch's order."""
    if device_type == "cpu":
        return ()
    import torch

    from diagnose.measure.machine.cuda import read_identities

    return read_identities(torch.get_device_module(device_type))


def probe(device_type: str, root: Path = ROOT) -> Machine:
    """The machine without its GPUs, as the measuring process sees it."""
    import torch

    model = read_cpu_model(root)
    devices = identities(device_type)
    name = devices[0].name if devices else model.value
    return Machine(
        device=device_type,
        device_name=name or f"unknown {device_type}",
        system=describe_system(platform.system(), platform.release(), platform.machine()),
        cpu_model=model,
        cpu_cores=count_cores(),
        cpu_governor=_read_text(root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        memory_bytes=_read("the memory", lambda: psutil.virtual_memory().total),
        memory_used_bytes=_read("the memory", _used_memory),
        shared_memory_bytes=_read("/dev/shm", lambda: shutil.disk_usage(root / "dev/shm").free),
        # Stolen time counts as busy, waiting for disks does not.
        cpu_busy_before=_read("CPU use", lambda: psutil.cpu_percent(BUSY_SECONDS) / 100),
        wsl2="microsoft" in platform.release().lower(),
        container=find_container(root),
        versions=_read_versions(),
        threads=torch.get_num_threads(),
        git_commit=read_commit(PROJECT),
        code_trees=read_trees(PROJECT),
        environment=choose_environment(os.environ),
    )


def with_gpus(
    machine: Machine,
    session: Session | Failure,
    identities: Sequence[Identity],
    salt: str,
    before: Mapping[str, gpus.Before] | None = None,
) -> Machine:
    """The machine with its GPUs, links and driver; without NVML, with the reasons instead."""

    def describe(live: Session | Failure) -> Machine:
        return replace(
            machine,
            gpus=tuple(gpus.describe_gpu(live, it, salt, before or {}) for it in identities),
            gpus_reason="" if identities else "the run uses no GPU",
            links=gpus.describe_links(live, identities),
            versions={
                **machine.versions,
                "driver": nvml.as_fact(live.ask("nvmlSystemGetDriverVersion")),
            },
            nvml=nvml.describe_library(live),
        )

    described = nvml.answer_within(nvml.PATIENCE_SECONDS, lambda: describe(session))
    return describe(described) if isinstance(described, Failure) else described


def describe_system(system: str, release: str, processor: str) -> str:
    """Only the numbers of the kernel's release: the rest is free text of whoever built it."""
    numbers = re.match(r"\d+(\.\d+)*", release)
    return f"{system} {numbers.group() if numbers else 'unknown'} {processor}"


def count_cores() -> int:
    """The processors that this process may use; where no system call tells, all there are."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def read_cpu_model(root: Path) -> Fact:
    text = _read_text(root / "proc/cpuinfo")
    if text.value is None:
        return text
    found = re.search(r"^(?:model name|Model|cpu model)\s*:\s*(.+)$", text.value, re.MULTILINE)
    return Fact(found.group(1).strip()) if found else Fact(None, "/proc/cpuinfo names no model")


def _used_memory() -> float:
    memory = psutil.virtual_memory()
    return float(memory.total - memory.available)


def _read(what: str, read: Callable[[], float]) -> Reading:
    try:
        return Reading(float(read()))
    except OSError as error:
        return Reading(None, f"{what} cannot be read: {error.strerror}")


def find_container(root: Path) -> Fact:
    """The kind of container only: its identifier is nobody's business."""
    if (root / ".dockerenv").exists():
        return Fact("docker")
    if (root / "run/.containerenv").exists():
        return Fact("podman")
    groups = _read_text(root / "proc/1/cgroup")
    if groups.value is None:
        return groups
    found = _CONTAINERS.search(groups.value)
    return Fact(found.group() if found else "none")


def _read_versions() -> dict[str, Fact]:
    import torch

    from diagnose.measure.machine import cuda

    return {
        "python": Fact(platform.python_version()),
        "torch": Fact(str(torch.__version__)),
        "cuda": cuda.read_cuda_version(),
        "cudnn": cuda.read_cudnn_version(),
        "nccl": cuda.read_nccl_version(),
        "transformers": _read_package_version("transformers"),
        "numpy": _read_package_version("numpy"),
    }


def _read_package_version(package: str) -> Fact:
    try:
        return Fact(importlib.metadata.version(package))
    except importlib.metadata.PackageNotFoundError:
        return Fact(None, f"{package} is not installed")


def find_repository(script: Path) -> Path:
    """The git checkout that a file is in; its folder if it is in none."""
    folders = script.absolute().parents
    return next((each for each in folders if (each / ".git").exists()), folders[0])


def read_commit(project: Path) -> Fact:
    """The project's commit, with "-dirty" if a tracked file differs. Reports do not count."""
    # Without this check git would answer for any repository that the project lies in.
    if not (project / ".git").exists():
        return Fact(None, "the project is not a git checkout")
    status = ("status", "--porcelain", "--untracked-files=no", "--", ".", ":!reports")
    try:
        commit = _git(project, "rev-parse", "--short=12", "HEAD")
        return Fact(commit + ("-dirty" if _git(project, *status) else ""))
    except FileNotFoundError:
        return Fact(None, "git is not installed")
    except (subprocess.SubprocessError, OSError):
        return Fact(None, "git could not read the project")


def read_trees(project: Path) -> dict[str, str]:
    """git's hash of each folder that measures, as committed; none where there is no checkout."""
    found = {}
    if (project / ".git").exists():
        for name in CODE_FOLDERS:
            with contextlib.suppress(subprocess.SubprocessError, OSError):
                found[name] = _git(project, "rev-parse", "--short=12", f"HEAD:{name}")
    return found


def holds(project: Path, name: str) -> bool:
    """Whether the repository has this commit or folder; of a shallow one nobody can say."""
    with contextlib.suppress(subprocess.SubprocessError, OSError):
        if _git(project, "rev-parse", "--is-shallow-repository") == "true":
            return True
        return bool(_git(project, "cat-file", "-t", name))
    return False


def _git(project: Path, *arguments: str) -> str:
    # Without the optional locks a status never writes to the repository.
    command = ["git", "--no-optional-locks", "-C", str(project), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_GIT_SECONDS, check=True)
    return done.stdout.strip()


def _read_text(path: Path) -> Fact:
    try:
        return Fact(path.read_text(errors="replace").strip())
    except OSError as error:
        return Fact(None, f"{path.name} cannot be read: {error.strerror}")
