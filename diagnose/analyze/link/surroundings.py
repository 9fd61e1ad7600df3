"""Does something around the job slow its link down? Settings, WSL2, shared memory, sockets.

Read before any number: a variable that somebody set and forgot is the usual cause.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from diagnose.analyze.findings import Finding, Rule
from diagnose.analyze.link.expected import used_links
from diagnose.analyze.units import scaled
from diagnose.records.ranks import BandwidthRecord

# NCCL's manual starts containers with --shm-size=1g; Docker's own default is 64 MiB.
LEAST_SHARED_MEMORY_BYTES = 1e9

NO_MEMORY, NO_PEERS, NO_NETWORK = "NCCL_SHM_DISABLE", "NCCL_P2P_DISABLE", "NCCL_IB_DISABLE"

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


@dataclass(frozen=True)
class Surroundings:
    """A record with the variables that steer its communication library, by name."""

    record: BandwidthRecord
    variables: dict[str, Variable]

    def switched_off(self, name: str) -> str:
        """By which variable, or nothing. NCCL reads numbers: all but 0 switch the feature off."""
        variable = self.variables.get(name)
        return "" if variable is None or variable.value in ("", "0") else str(variable)

    def list_variables(self, prefix: str, but: Sequence[str] = ()) -> str | None:
        names = (name for name in self.variables if name.startswith(prefix) and name not in but)
        return "; ".join(str(self.variables[name]) for name in names) or None


def judge_surroundings(record: BandwidthRecord) -> list[Finding]:
    """In the order in which they explain a slow link."""
    case = Surroundings(record, read_variables(record))
    rules = (*(RULES_OF_NCCL if record.backend == "nccl" else ()), *RULES_OF_ANY)
    return [finding for rule in rules for finding in rule.judge(case)]


def read_variables(record: BandwidthRecord) -> dict[str, Variable]:
    """By name; the environment wins over a file, as it does in NCCL."""
    found = {}
    for name, fact in record.surroundings.items():
        if name.endswith("nccl.conf") and fact.value is not None:
            for variable, value in _VARIABLE.findall(fact.value):
                found[variable] = Variable(variable, value, name)
    read = {name: fact.value for name, fact in record.surroundings.items()}
    for name, value in {**read, **record.header.machine.environment}.items():
        if _VARIABLE_NAME.fullmatch(name) and value is not None:
            found[name] = Variable(name, value, "the environment")
    return dict(sorted(found.items()))


def uses_sockets(record: BandwidthRecord) -> bool:
    """Whether GPUs of one host are left with the network to reach each other."""
    return _sockets(Surroundings(record, read_variables(record))) is not None


def _sockets(case: Surroundings) -> str | None:
    record, no_memory = case.record, case.switched_off(NO_MEMORY)
    alone = len({rank.node for rank in record.ranks}) == len(record.ranks)
    if record.backend != "nccl" or not no_memory or alone:
        return None
    no_peers = case.switched_off(NO_PEERS)
    if not no_peers and not _peers_out_of_reach(case):
        return None
    why = no_peers or "these GPUs cannot reach each other directly"
    interface = record.surroundings.get("interface")
    name = None if interface is None else interface.value
    return f"{no_memory}; {why}; interface {name or 'unknown'}"


def _peers_out_of_reach(case: Surroundings) -> bool:
    level = case.variables.get("NCCL_P2P_LEVEL")
    if case.record.header.machine.wsl2 or (level is not None and level.value in _NO_PEERS_LEVEL):
        return True
    # A peer status that is known and not OK: NCCL then does not even try.
    return any(link.peer_to_peer.value not in (None, "OK") for link in used_links(case.record))


def _path_off(name: str, consequence: str, case: Surroundings) -> str | None:
    """One way is off; where no other is left, the sockets are the finding."""
    variable = case.switched_off(name)
    return f"{variable}; {consequence}" if variable and not _sockets(case) else None


def _changed(case: Surroundings) -> str | None:
    """What else steers the library; variables with a finding of their own are told there."""
    told = [name for name in (NO_MEMORY, NO_PEERS, NO_NETWORK) if case.switched_off(name)]
    return case.list_variables("NCCL_" if case.record.backend == "nccl" else "GLOO_", told)


def _shared_memory(case: Surroundings) -> str | None:
    free = case.record.header.machine.shared_memory_bytes.value
    if free is None or free >= LEAST_SHARED_MEMORY_BYTES:
        return None
    return f"{scaled(free, 'B')} free in /dev/shm"


def _cross_numa(case: Surroundings) -> str | None:
    links = [link for link in used_links(case.record) if link.kind.value == "SYS"]
    if links:
        return "SYS: " + ", ".join(f"GPU {each.first} and GPU {each.second}" for each in links)
    places = {rank.numa_node.value for rank in case.record.ranks if rank.node == 0} - {None}
    return f"ranks on {len(places)} NUMA nodes" if len(places) > 1 else None


RULES_OF_NCCL: tuple[Rule[Surroundings], ...] = (
    Rule(
        "sockets",
        "cause",
        "critical",
        "GPUs of one machine talk over network sockets: their faster ways are switched off.",
        _sockets,
        f"Unset {NO_MEMORY}, and {NO_PEERS} where it is set, and measure again. If the job then "
        "hangs, make shared memory larger (containers: --shm-size=1g) instead of switching it off.",
    ),
    Rule(
        "shm_disabled",
        "flag",
        "warning",
        "Shared memory is switched off for NCCL.",
        partial(
            _path_off,
            NO_MEMORY,
            "GPUs that cannot reach each other directly are left with sockets",
        ),
        f"Unset {NO_MEMORY} and measure again.",
    ),
    Rule(
        "p2p_disabled",
        "flag",
        "warning",
        "Direct transfers between GPUs are switched off for NCCL.",
        partial(_path_off, NO_PEERS, "every byte is copied through host memory"),
        f"Unset {NO_PEERS} and measure again; keep it only where a run hangs without.",
    ),
    Rule(
        "ib_disabled",
        "flag",
        "info",
        f"{NO_NETWORK} has no effect within one machine.",
        lambda case: case.record.nodes < 2 and case.switched_off(NO_NETWORK),
    ),
    Rule(
        "ib_disabled",
        "cause",
        "critical",
        "InfiniBand is switched off: the hosts talk over TCP sockets.",
        lambda case: case.record.nodes > 1 and case.switched_off(NO_NETWORK),
        f"Unset {NO_NETWORK} if the hosts have InfiniBand or RoCE, and measure again.",
    ),
    Rule(
        "wsl2",
        "flag",
        "warning",
        "Under WSL2 NCCL has neither NVLink nor direct transfers, only shared memory.",
        lambda case: case.record.header.machine.wsl2 and "the kernel is WSL2's",
        "Keep shared memory switched on, use NCCL 2.11.4 or newer, and compare with native Linux "
        "before buying hardware.",
    ),
    Rule(
        "shared_memory",
        "flag",
        "warning",
        "Shared memory may be too small for NCCL.",
        _shared_memory,
        "Start the container with --shm-size=1g or --ipc=host.",
    ),
    Rule(
        "cross_numa",
        "flag",
        "warning",
        "GPUs hang on different processors: their traffic crosses the link between sockets.",
        _cross_numa,
        "Put the cards into slots of one processor, or start each rank on the processor of its "
        "GPU (numactl --cpunodebind).",
    ),
)
RULES_OF_ANY: tuple[Rule[Surroundings], ...] = (
    Rule(
        "variables",
        "flag",
        "info",
        "Settings of the communication library were changed before this run.",
        _changed,
        "Measure once without each of them: --env-sweep does some of it.",
    ),
    Rule(
        "variables_unread",
        "flag",
        "info",
        "NCCL's settings have no effect here: the ranks do not use NCCL.",
        lambda case: case.record.backend != "nccl" and case.list_variables("NCCL_"),
    ),
)
