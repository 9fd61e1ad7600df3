"""Which GPUs are these, who else was using them, and how do they reach each other?"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from diagnose.measure.gpu import nvml
from diagnose.measure.gpu.energy import find_period
from diagnose.measure.gpu.nvml import Failure, Found, Identity, Session
from diagnose.measure.gpu.poll import FAST_SECONDS, Clock, GpuPoll
from diagnose.measure.gpu.use import mean_utilization, measure_idle_watts
from diagnose.records.header import Fact, Gpu, Link, Reading

_SWITCH = {0: "off", 1: "on"}
_COMPUTE_MODES = {0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}
# Names as nvidia-smi's topology matrix prints them.
_TOPOLOGY = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
_PEER_STATUS = {
    0: "OK",
    1: "chipset not supported",
    2: "GPU not supported",
    3: "IO hub topology not supported",
    4: "disabled by registry key",
    5: "not supported",
}
_READ, _NVLINK = 0, 2  # nvmlGpuP2PCapsIndex_t
_GRAPHICS_SM, _MEMORY = 1, 2  # nvmlClockType_t
_LIMITS = "nvmlDeviceGetPowerManagementLimitConstraints"


def _name(names: Mapping[int, str], code: int) -> str:
    return names.get(code, f"unknown code {code}")


def _watts(milliwatts: float) -> float:
    return milliwatts * nvml.WATTS_PER_MILLIWATT


def _hertz(megahertz: float) -> float:
    return megahertz * nvml.HERTZ_PER_MEGAHERTZ


# Field of Gpu -> the call that tells it, its arguments, and what is taken of the answer.
_NUMBERS: Mapping[str, tuple[str, tuple[int, ...], Callable[[Any], float]]] = {
    "nvml_index": ("nvmlDeviceGetIndex", (), float),
    "memory_bytes": ("nvmlDeviceGetMemoryInfo", (), lambda it: float(it.total)),
    "power_limit_watts": ("nvmlDeviceGetPowerManagementLimit", (), _watts),
    "power_limit_default_watts": ("nvmlDeviceGetPowerManagementDefaultLimit", (), _watts),
    "power_limit_min_watts": (_LIMITS, (), lambda it: _watts(it[0])),
    "power_limit_max_watts": (_LIMITS, (), lambda it: _watts(it[1])),
    "sm_hertz_max": ("nvmlDeviceGetMaxClockInfo", (_GRAPHICS_SM,), _hertz),
    "memory_hertz_max": ("nvmlDeviceGetMaxClockInfo", (_MEMORY,), _hertz),
    "pcie_generation": ("nvmlDeviceGetCurrPcieLinkGeneration", (), float),
    "pcie_generation_max": ("nvmlDeviceGetMaxPcieLinkGeneration", (), float),
    "pcie_width": ("nvmlDeviceGetCurrPcieLinkWidth", (), float),
    "pcie_width_max": ("nvmlDeviceGetMaxPcieLinkWidth", (), float),
}
_TEXTS: Mapping[str, tuple[str, Callable[[Any], str]]] = {
    "compute_capability": ("nvmlDeviceGetCudaComputeCapability", lambda it: f"{it[0]}.{it[1]}"),
    "ecc": ("nvmlDeviceGetEccMode", lambda it: _name(_SWITCH, it[0])),
    "mig": ("nvmlDeviceGetMigMode", lambda it: _name(_SWITCH, it[0])),
    "persistence": ("nvmlDeviceGetPersistenceMode", lambda it: _name(_SWITCH, it)),
    "compute_mode": ("nvmlDeviceGetComputeMode", lambda it: _name(_COMPUTE_MODES, it)),
}

NOT_WATCHED = (
    "the device was not watched before the measuring process started, "
    "and since then its own use would be counted"
)


@dataclass(frozen=True)
class Before:
    """A GPU before this run touched it: what others did with it, and what it draws idle."""

    memory_used_bytes: Reading
    utilization: Reading
    idle_watts: Reading
    energy_period_seconds: Reading


def unknown_before(reason: str) -> Before:
    return Before(**{spec.name: Reading(None, reason) for spec in fields(Before)})


def observe_before(
    session: Session | Failure,
    seconds: float = 2.0,
    clock: Clock = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Mapping[str, Before]:
    """Watch every GPU for a while, by UUID. To be called before the measuring process starts."""
    if isinstance(session, Failure):
        return {}
    watch = partial(_watch, session, seconds, clock, sleep)
    watched = nvml.answer_within(seconds + nvml.PATIENCE_SECONDS, watch)
    return {} if isinstance(watched, Failure) else watched


def _watch(
    session: Session, seconds: float, clock: Clock, sleep: Callable[[float], None]
) -> dict[str, Before]:
    began = clock()
    devices = {uuid: Found(session, handle) for uuid, handle in session.devices().items()}
    polls = {uuid: GpuPoll(session, Identity(0, "", uuid), began) for uuid in devices}
    while True:
        for poll in polls.values():
            if clock() >= poll.due:
                poll.poll(clock)
        if not polls or clock() - began >= seconds:
            break
        sleep(FAST_SECONDS)
    seen = {}
    for uuid, poll in polls.items():
        trace, window = poll.trace(), (began, clock())
        seen[uuid] = Before(
            memory_used_bytes=_read_memory_used(devices[uuid]),
            utilization=mean_utilization(trace, [window]),
            idle_watts=measure_idle_watts(trace, *window),
            energy_period_seconds=find_period(trace["joules"]),
        )
    return seen


def _read_memory_used(found: Found) -> Reading:
    exact, with_reserved = (found.ask(call, *arguments) for call, arguments in nvml.MEMORY_CALLS)
    if not isinstance(exact, Failure):
        return Reading(float(exact.used))
    if not isinstance(with_reserved, Failure):
        remark = "with what the driver reserves for itself, which it does not tell apart"
        return Reading(float(with_reserved.used), remark)
    return Reading(None, with_reserved.reason)


def recall_before(
    session: Session | Failure, identity: Identity, before: Mapping[str, Before]
) -> Before:
    """What was seen of torch's device before the run."""
    found = nvml.find_device(session, identity)
    if isinstance(found, Failure):
        return unknown_before(found.reason)
    return before.get(found.ask("nvmlDeviceGetUUID")) or unknown_before(NOT_WATCHED)


def describe_gpu(
    session: Session | Failure, identity: Identity, salt: str, before: Mapping[str, Before]
) -> Gpu:
    """Everything a record says of a GPU; what NVML does not tell carries the reason."""
    found = nvml.find_device(session, identity)
    uuid = None if isinstance(found, Failure) else found.ask("nvmlDeviceGetUUID")
    uuid = uuid if isinstance(uuid, str) else identity.uuid
    earlier = recall_before(session, identity, before)
    told: dict[str, Any] = {}
    for name, (call, arguments, number) in _NUMBERS.items():
        answer = found if isinstance(found, Failure) else found.ask(call, *arguments)
        failed = isinstance(answer, Failure)
        told[name] = Reading(None, answer.reason) if failed else Reading(number(answer))
    for name, (call, text) in _TEXTS.items():
        answer = found if isinstance(found, Failure) else found.ask(call)
        failed = isinstance(answer, Failure)
        told[name] = Fact(None, answer.reason) if failed else Fact(text(answer))
    if isinstance(found, Failure):
        if identity.memory_bytes is not None:
            told["memory_bytes"] = Reading(float(identity.memory_bytes))
        if identity.compute_capability is not None:
            told["compute_capability"] = Fact(identity.compute_capability)
    elif found.doubt and told["nvml_index"].value is not None:
        told["nvml_index"] = Reading(told["nvml_index"].value, found.doubt)
    return Gpu(
        name=identity.name,
        uuid_hash=hash_uuid(uuid, salt),
        memory_used_before_bytes=earlier.memory_used_bytes,
        utilization_before=earlier.utilization,
        energy_period_seconds=Reading(None, "not detected: the energy counter was not sampled"),
        **told,
    )


def hash_uuid(uuid: str | None, salt: str) -> str:
    """Tells two GPUs of one record apart without naming them. Empty if there is no UUID."""
    if not uuid:
        return ""
    bare = uuid.removeprefix("GPU-").lower()
    return hashlib.sha256((salt + bare).encode()).hexdigest()[:12]


def describe_links(session: Session | Failure, identities: Sequence[Identity]) -> tuple[Link, ...]:
    """How every pair of GPUs is connected. GPUs that NVML does not find have no links."""
    found = [nvml.find_device(session, each) for each in identities]
    known = [(i, each) for i, each in enumerate(found) if isinstance(each, Found)]
    return tuple(
        Link(
            first=first,
            second=second,
            kind=_link_kind(here, there),
            peer_to_peer=_as_fact(
                here.ask("nvmlDeviceGetP2PStatus", there.handle, _READ), _PEER_STATUS
            ),
        )
        for position, (first, here) in enumerate(known)
        for second, there in known[position + 1 :]
    )


def _link_kind(here: Found, there: Found) -> Fact:
    remotes = _nvlink_remotes(here)
    if remotes:
        # Behind an NVSwitch the remote end is the switch, and only the driver knows who is beyond.
        status = here.ask("nvmlDeviceGetP2PStatus", there.handle, _NVLINK)
        address = there.ask("nvmlDeviceGetPciInfo")
        if status == 0 or (not isinstance(address, Failure) and address.busId in remotes):
            return Fact("NVLINK")
    return _as_fact(here.ask("nvmlDeviceGetTopologyCommonAncestor", there.handle), _TOPOLOGY)


def _nvlink_remotes(found: Found) -> set[Any]:
    remotes = set()
    for link in range(found.session.library.NVML_NVLINK_MAX_LINKS):
        active = found.ask("nvmlDeviceGetNvLinkState", link)
        if isinstance(active, Failure):
            break
        remote = found.ask("nvmlDeviceGetNvLinkRemotePciInfo", link) if active else None
        if remote and not isinstance(remote, Failure):
            remotes.add(remote.busId)
    return remotes


def _as_fact(answer: Any, names: Mapping[int, str]) -> Fact:
    return Fact(None, answer.reason) if isinstance(answer, Failure) else Fact(_name(names, answer))
