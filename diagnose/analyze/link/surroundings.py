"""Does something around the job slow its link down? Settings, WSL2, shared memory, sockets.

Read before any number: a variable that somebody set and forgot is the usual cause.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from diagnose.analyze.findings import Finding
from diagnose.analyze.link.expected import used_links
from diagnose.analyze.units import scaled
from diagnose.records.ranks import BandwidthRecord

# NCCL's manual starts containers with --shm-size=1g; Docker's own default is 64 MiB.
LEAST_SHARED_MEMORY_BYTES = 1e9

_VARIABLE = re.compile(r"\b((?:NCCL|GLOO|TORCH_NCCL)_[A-Z0-9_]+)\s*=\s*([^\s,;]+)")
_VARIABLE_NAME = re.compile(r"(?:NCCL|GLOO)_[A-Z0-9_]+")
# Values of NCCL_P2P_LEVEL that allow no direct transfer at all.
_NO_PEERS_LEVEL = ("LOC", "0")


@dataclass(frozen=True)
class Variable:
    """A setting of the communication library and where it comes from."""

    name: str
    value: str
    origin: str  # "the environment" or the file

    def __str__(self) -> str:
        return f"{self.name}={self.value} ({self.origin})"


def read_variables(record: BandwidthRecord) -> dict[str, Variable]:
    """By name; the environment wins over a file, as it does in NCCL."""
    found = {}
    for name, fact in record.surroundings.items():
        if name.endswith("nccl.conf") and fact.value is not None:
            for variable, value in _VARIABLE.findall(fact.value):
                found[variable] = Variable(variable, value, name)
    for name, fact in record.surroundings.items():
        if _VARIABLE_NAME.fullmatch(name) and fact.value is not None:
            found[name] = Variable(name, fact.value, "the environment")
    for name, value in record.header.machine.environment.items():
        if _VARIABLE_NAME.fullmatch(name):
            found[name] = Variable(name, value, "the environment")
    return dict(sorted(found.items()))


def judge_surroundings(record: BandwidthRecord) -> list[Finding]:
    """In the order in which they explain a slow link."""
    variables = read_variables(record)
    if record.backend != "nccl":
        return [*_unread(record, variables), *_other_variables(record, variables)]
    return [
        *_paths_disabled(record, variables),
        *_network_disabled(record, variables),
        *_other_variables(record, variables),
        *_wsl2(record),
        *_shared_memory(record),
        *_cross_numa(record),
    ]


def uses_sockets(record: BandwidthRecord) -> bool:
    """Whether GPUs of one host are left with the network to reach each other."""
    variables = read_variables(record)
    if record.backend != "nccl" or not _is_on(variables, "NCCL_SHM_DISABLE"):
        return False
    if len({rank.node for rank in record.ranks}) == len(record.ranks):
        return False
    return _is_on(variables, "NCCL_P2P_DISABLE") or _peers_out_of_reach(record, variables)


def _paths_disabled(record: BandwidthRecord, variables: dict[str, Variable]) -> list[Finding]:
    no_memory, no_peers = (
        variables.get(name) if _is_on(variables, name) else None
        for name in ("NCCL_SHM_DISABLE", "NCCL_P2P_DISABLE")
    )
    if uses_sockets(record):
        return [_sockets(record, no_memory, no_peers)]
    found = []
    if no_memory is not None:
        found.append(
            Finding(
                "shm_disabled",
                "flag",
                "warning",
                "Shared memory is switched off for NCCL.",
                f"{no_memory}; GPUs that cannot reach each other directly are left with sockets",
                "Unset NCCL_SHM_DISABLE and measure again.",
            )
        )
    if no_peers is not None:
        found.append(
            Finding(
                "p2p_disabled",
                "flag",
                "warning",
                "Direct transfers between GPUs are switched off for NCCL.",
                f"{no_peers}; every byte is copied through host memory",
                "Unset NCCL_P2P_DISABLE and measure again; keep it only where a run hangs without.",
            )
        )
    return found


def _sockets(
    record: BandwidthRecord, no_memory: Variable | None, no_peers: Variable | None
) -> Finding:
    why = str(no_peers) if no_peers else "these GPUs cannot reach each other directly"
    interface = record.surroundings.get("interface")
    name = interface.value if interface is not None else None
    names = " and ".join(each.name for each in (no_memory, no_peers) if each is not None)
    return Finding(
        "sockets",
        "cause",
        "critical",
        "GPUs of one machine talk over network sockets: their faster ways are switched off.",
        f"{no_memory}; {why}; interface {name or 'unknown'}",
        f"Unset {names} and measure again. If the job then hangs, make shared memory larger "
        "(containers: --shm-size=1g) instead of switching it off.",
    )


def _peers_out_of_reach(record: BandwidthRecord, variables: dict[str, Variable]) -> bool:
    level = variables.get("NCCL_P2P_LEVEL")
    if record.header.machine.wsl2 or (level is not None and level.value in _NO_PEERS_LEVEL):
        return True
    # A peer status that is known and not OK: NCCL then does not even try.
    return any(link.peer_to_peer.value not in (None, "OK") for link in used_links(record))


def _network_disabled(record: BandwidthRecord, variables: dict[str, Variable]) -> list[Finding]:
    if not _is_on(variables, "NCCL_IB_DISABLE"):
        return []
    setting = str(variables["NCCL_IB_DISABLE"])
    if record.nodes < 2:
        return [
            Finding(
                "ib_disabled",
                "flag",
                "info",
                "NCCL_IB_DISABLE has no effect within one machine.",
                setting,
            )
        ]
    return [
        Finding(
            "ib_disabled",
            "cause",
            "critical",
            "InfiniBand is switched off: the hosts talk over TCP sockets.",
            setting,
            "Unset NCCL_IB_DISABLE if the hosts have InfiniBand or RoCE, and measure again.",
        )
    ]


def _other_variables(record: BandwidthRecord, variables: dict[str, Variable]) -> list[Finding]:
    """What else steers the library in use; those with a finding of their own are told there."""
    told = ("NCCL_SHM_DISABLE", "NCCL_P2P_DISABLE", "NCCL_IB_DISABLE")
    prefix = "NCCL_" if record.backend == "nccl" else "GLOO_"
    others = [
        str(each)
        for name, each in variables.items()
        if name.startswith(prefix) and not (name in told and _is_on(variables, name))
    ]
    if not others:
        return []
    return [
        Finding(
            "variables",
            "flag",
            "info",
            f"Settings of {record.backend} were changed before this run.",
            "; ".join(others),
            "Measure once without each of them: --env-sweep does some of it.",
        )
    ]


def _unread(record: BandwidthRecord, variables: dict[str, Variable]) -> list[Finding]:
    names = [str(each) for name, each in variables.items() if name.startswith("NCCL_")]
    if not names:
        return []
    sentence = f"NCCL's settings have no effect here: the ranks use {record.backend}."
    return [Finding("variables_unread", "flag", "info", sentence, "; ".join(names))]


def _wsl2(record: BandwidthRecord) -> list[Finding]:
    if not record.header.machine.wsl2:
        return []
    return [
        Finding(
            "wsl2",
            "flag",
            "warning",
            "Under WSL2 NCCL has neither NVLink nor direct transfers, only shared memory.",
            "the kernel is WSL2's",
            "Keep shared memory switched on, use NCCL 2.11.4 or newer, and compare with native "
            "Linux before buying hardware.",
        )
    ]


def _shared_memory(record: BandwidthRecord) -> list[Finding]:
    free = record.header.machine.shared_memory_bytes.value
    if free is None or free >= LEAST_SHARED_MEMORY_BYTES:
        return []
    return [
        Finding(
            "shared_memory",
            "flag",
            "warning",
            "Shared memory may be too small for NCCL.",
            f"{scaled(free, 'B')} free in /dev/shm",
            "Start the container with --shm-size=1g or --ipc=host.",
        )
    ]


def _cross_numa(record: BandwidthRecord) -> list[Finding]:
    pairs = [
        f"GPU {link.first} and GPU {link.second}"
        for link in used_links(record)
        if link.kind.value == "SYS"
    ]
    places = {rank.numa_node.value for rank in record.ranks if rank.node == 0} - {None}
    if not pairs and len(places) < 2:
        return []
    evidence = f"SYS: {', '.join(pairs)}" if pairs else f"ranks on {len(places)} NUMA nodes"
    return [
        Finding(
            "cross_numa",
            "flag",
            "warning",
            "GPUs hang on different processors: their traffic crosses the link between sockets.",
            evidence,
            "Put the cards into slots of one processor, or start each rank on the processor of "
            "its GPU (numactl --cpunodebind).",
        )
    ]


def _is_on(variables: dict[str, Variable], name: str) -> bool:
    """NCCL reads these as numbers: everything but 0 switches the feature off."""
    return name in variables and variables[name].value not in ("", "0")
