"""Which GPUs are these, who else was using them, and how do they reach each other?"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from operator import attrgetter
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
    "memory_bytes": ("nvmlDeviceGetMemoryInfo", (), attrgetter("total")),
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
    "persistence": ("nvmlDeviceGetPersistenceMode", partial(_name, _SWITCH)),
    "compute_mode": ("nvmlDeviceGetComputeMode", partial(_name, _COMPUTE_MODES)),
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
    exact, with_reserved = (
        nvml.as_reading(found.ask(call, *arguments), attrgetter("used"))
        for call, arguments in nvml.MEMORY_CALLS
    )
    if exact.value is not None or with_reserved.value is None:
        return exact
    remark = "with what the driver reserves for itself, which it does not tell apart"
    return Reading(with_reserved.value, remark)


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
    earlier = recall_before(session, identity, before)
    told: dict[str, Any] = {
        name: nvml.as_reading(found.ask(call, *arguments), take)
        for name, (call, arguments, take) in _NUMBERS.items()
    }
    told |= {name: nvml.as_fact(found.ask(call), take) for name, (call, take) in _TEXTS.items()}
    if isinstance(found, Failure):
        if identity.memory_bytes is not None:
            told["memory_bytes"] = Reading(float(identity.memory_bytes))
        if identity.compute_capability is not None:
            told["compute_capability"] = Fact(identity.compute_capability)
    elif found.doubt and told["nvml_index"].value is not None:
        told["nvml_index"] = Reading(told["nvml_index"].value, found.doubt)
    return Gpu(
        name=identity.name,
        uuid_hash=hash_uuid(
            nvml.as_fact(found.ask("nvmlDeviceGetUUID")).value or identity.uuid, salt
        ),
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
            peer_to_peer=nvml.as_fact(
                here.ask("nvmlDeviceGetP2PStatus", there.handle, _READ),
                partial(_name, _PEER_STATUS),
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
    level = here.ask("nvmlDeviceGetTopologyCommonAncestor", there.handle)
    return nvml.as_fact(level, partial(_name, _TOPOLOGY))


def _nvlink_remotes(found: Found) -> set[Any]:
    remotes = set()
    for link in range(found.session.library.NVML_NVLINK_MAX_LINKS):
        active = found.ask("nvmlDeviceGetNvLinkState", link)
        if isinstance(active, Failure):
            break
        if active:
            remote = found.ask("nvmlDeviceGetNvLinkRemotePciInfo", link)
            remotes.add(None if isinstance(remote, Failure) else remote.busId)
    return remotes
