"""What lies around the link? Settings, files and interfaces that decide how fast it can be.

Read before anything is measured, in the supervisor of rank 0 and for its host. No torch, and
nothing private: settings only, never a path, a user or an address.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from diagnose.measure.machine.environment import choose_environment
from diagnose.records.header import HIDDEN, Fact, Machine
from diagnose.records.ranks import Rank

# Those that switch a path off or choose an interface. Every other NCCL variable is in
# Machine.environment.
VARIABLES = (
    "NCCL_SHM_DISABLE",
    "NCCL_P2P_DISABLE",
    "NCCL_IB_DISABLE",
    "NCCL_SOCKET_IFNAME",
    "GLOO_SOCKET_IFNAME",
)
_SETTING = re.compile(r"^\s*(NCCL_[A-Z0-9_]+)\s*=\s*(\S+)", re.MULTILINE)
_INTERFACE_NAME = re.compile(r"[A-Za-z0-9_.,=^-]{1,64}")
# linux/if_arp.h
_LOOPBACK, _INFINIBAND, _ETHERNET = 772, 32, 1


def read_surroundings(
    environment: Mapping[str, str],
    machine: Machine,
    ranks: Sequence[Rank],
    home: Path | None,
    root: Path = Path("/"),
) -> dict[str, Fact]:
    """By name; whatever cannot be read has its reason."""
    return {
        **{name: _read_variable(name, environment) for name in VARIABLES},
        "nccl.conf": read_settings(root / "etc/nccl.conf"),
        "~/.nccl.conf": (
            read_settings(home / ".nccl.conf") if home else Fact(None, "there is no home")
        ),
        "wsl2": Fact("yes" if machine.wsl2 else "no"),
        "/dev/shm": _read_shared_memory(root),
        "numa": _describe_numa(machine, ranks),
        "interface": describe_interfaces(root),
        "infiniband": _find_infiniband(root),
    }


def _read_variable(name: str, environment: Mapping[str, str]) -> Fact:
    value = environment.get(name)
    if value is None:
        return Fact(None, "not set")
    if name.startswith("NCCL_"):
        return Fact(choose_environment(environment)[name])
    return Fact(value if _INTERFACE_NAME.fullmatch(value) else HIDDEN)


def read_settings(path: Path) -> Fact:
    """The settings of one nccl.conf: they act like variables, and nobody remembers them."""
    try:
        text = path.read_text(errors="replace")
    except FileNotFoundError:
        return Fact(None, "there is none")
    except OSError as error:
        return Fact(None, f"cannot be read: {error.strerror}")
    settings = choose_environment(dict(_SETTING.findall(text)))
    if not settings:
        return Fact(None, "it sets nothing")
    return Fact(", ".join(f"{name}={value}" for name, value in settings.items()))


def _read_shared_memory(root: Path) -> Fact:
    try:
        usage = shutil.disk_usage(root / "dev/shm")
    except OSError as error:
        return Fact(None, f"cannot be read: {error.strerror}")
    return Fact(f"{usage.total} bytes, {usage.free} of them free")


def _describe_numa(machine: Machine, ranks: Sequence[Rank]) -> Fact:
    known = [each for each in ranks if each.node == 0 and each.numa_node.value is not None]
    if not known:
        return Fact(None, ranks[0].numa_node.reason if ranks else "there are no ranks")
    places = [f"rank {each.rank} on node {each.numa_node.value:.0f}" for each in known]
    links = [
        f"GPU {each.first} to GPU {each.second}: {each.kind.value}"
        for each in machine.links
        if each.kind.value is not None
    ]
    return Fact(", ".join(places + links))


def describe_interfaces(root: Path) -> Fact:
    """Every interface that is up, by kind and nominal rate; names are the user's own."""
    try:
        found = sorted((root / "sys/class/net").iterdir())
    except OSError as error:
        return Fact(None, f"cannot be read: {error.strerror}")
    kinds = [kind for path in found if (kind := _describe_interface(path))]
    return Fact(", ".join(kinds)) if kinds else Fact(None, "no interface is up")


def _describe_interface(path: Path) -> str:
    if _read(path / "operstate") not in ("up", "unknown"):
        return ""
    number = int(_read(path / "type") or 0)
    kind = {_LOOPBACK: "loopback", _INFINIBAND: "InfiniBand", _ETHERNET: "ethernet"}.get(number)
    if kind is None:
        return "another kind"
    if number == _ETHERNET and not (path / "device").exists():
        kind = "virtual ethernet"  # a bridge, or one end of a container's cable
    rate = _read(path / "speed")
    return f"{kind} {rate} Mbit/s" if rate.isdecimal() and number != _LOOPBACK else kind


def _find_infiniband(root: Path) -> Fact:
    try:
        adapters = list((root / "sys/class/infiniband").iterdir())
    except OSError:
        return Fact(None, "there is no adapter")
    return Fact(f"{len(adapters)} adapter(s)") if adapters else Fact(None, "there is no adapter")


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:  # a virtual interface has no speed, and reading it is an error
        return ""
