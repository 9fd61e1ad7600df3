"""Which GPUs are these, who else was using them, and how do they reach each other?"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
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
    live = session
    watched = nvml.answer_within(
        seconds + nvml.PATIENCE_SECONDS, lambda: _watch(live, seconds, clock, sleep)
    )
    return {} if isinstance(watched, Failure) else watched


def _watch(
    session: Session, seconds: float, clock: Clock, sleep: Callable[[float], None]
) -> dict[str, Before]:
    began = clock()
    handles: dict[str, Any] = {}
    count = session.ask("nvmlDeviceGetCount")
    for index in range(0 if isinstance(count, Failure) else count):
        handle = session.ask("nvmlDeviceGetHandleByIndex", index)
        uuid = handle if isinstance(handle, Failure) else session.ask("nvmlDeviceGetUUID", handle)
        if not isinstance(uuid, Failure):
            handles[uuid] = handle
    polls = {uuid: GpuPoll(session, Identity(0, "", uuid), began) for uuid in handles}
    while True:
        for poll in polls.values():
            if clock() >= poll.due:
                poll.poll(clock)
        if not polls or clock() - began >= seconds:
            break
        sleep(FAST_SECONDS)
    return {
        uuid: _sum_up(poll, _read_memory_used(session, handles[uuid]), (began, clock()))
        for uuid, poll in polls.items()
    }


def _sum_up(poll: GpuPoll, memory_used: Reading, window: tuple[float, float]) -> Before:
    trace = poll.trace()
    return Before(
        memory_used_bytes=memory_used,
        utilization=mean_utilization(trace, [window]),
        idle_watts=measure_idle_watts(trace, *window),
        energy_period_seconds=find_period(trace.joules),
    )


def recall_before(
    session: Session | Failure, identity: Identity, before: Mapping[str, Before]
) -> Before:
    """What was seen of torch's device before the run."""
    found = session if isinstance(session, Failure) else nvml.find_handle(session, identity)
    if isinstance(session, Failure) or isinstance(found, Failure):
        return unknown_before(found.reason if isinstance(found, Failure) else NOT_WATCHED)
    uuid = session.tell("nvmlDeviceGetUUID", found.handle).value
    return before.get(uuid or "") or unknown_before(NOT_WATCHED)


def describe_gpu(
    session: Session | Failure,
    identity: Identity,
    salt: str,
    before: Mapping[str, Before] | None = None,
) -> Gpu:
    """Everything a record says of a GPU; what NVML does not tell carries the reason."""
    found = session if isinstance(session, Failure) else nvml.find_handle(session, identity)
    if isinstance(session, Failure) or isinstance(found, Failure):
        reason = found.reason if isinstance(found, Failure) else ""
        return _describe_without_nvml(identity, salt, reason)
    return _describe_with_nvml(session, found, identity, salt, before or {})


def _describe_without_nvml(identity: Identity, salt: str, reason: str) -> Gpu:
    unknown: dict[str, Any] = {
        spec.name: Fact(None, reason) if spec.type == "Fact" else Reading(None, reason)
        for spec in fields(Gpu)
        if spec.type in ("Fact", "Reading")
    }
    if identity.memory_bytes is not None:
        unknown["memory_bytes"] = Reading(float(identity.memory_bytes))
    if identity.compute_capability is not None:
        unknown["compute_capability"] = Fact(identity.compute_capability)
    return Gpu(name=identity.name, uuid_hash=hash_uuid(identity.uuid, salt), **unknown)


def _describe_with_nvml(
    session: Session, found: Found, identity: Identity, salt: str, before: Mapping[str, Before]
) -> Gpu:
    handle = found.handle
    read, tell = session.read, session.tell
    uuid = tell("nvmlDeviceGetUUID", handle).value or identity.uuid
    index = read("nvmlDeviceGetIndex", handle)
    limits = session.ask("nvmlDeviceGetPowerManagementLimitConstraints", handle)
    earlier = before.get(uuid or "") or unknown_before(NOT_WATCHED)
    memory = session.memory(handle)
    milliwatts, megahertz = nvml.WATTS_PER_MILLIWATT, nvml.HERTZ_PER_MEGAHERTZ
    return Gpu(
        name=identity.name,
        uuid_hash=hash_uuid(uuid, salt),
        nvml_index=Reading(index.value, index.reason or found.doubt),
        memory_bytes=(
            Reading(None, memory.reason)
            if isinstance(memory, Failure)
            else Reading(memory.total_bytes)
        ),
        memory_used_before_bytes=earlier.memory_used_bytes,
        utilization_before=earlier.utilization,
        power_limit_watts=read("nvmlDeviceGetPowerManagementLimit", handle, unit=milliwatts),
        power_limit_default_watts=read(
            "nvmlDeviceGetPowerManagementDefaultLimit", handle, unit=milliwatts
        ),
        power_limit_min_watts=_pick_limit(limits, 0),
        power_limit_max_watts=_pick_limit(limits, 1),
        sm_hertz_max=read("nvmlDeviceGetMaxClockInfo", handle, _GRAPHICS_SM, unit=megahertz),
        memory_hertz_max=read("nvmlDeviceGetMaxClockInfo", handle, _MEMORY, unit=megahertz),
        pcie_generation=read("nvmlDeviceGetCurrPcieLinkGeneration", handle),
        pcie_generation_max=read("nvmlDeviceGetMaxPcieLinkGeneration", handle),
        pcie_width=read("nvmlDeviceGetCurrPcieLinkWidth", handle),
        pcie_width_max=read("nvmlDeviceGetMaxPcieLinkWidth", handle),
        compute_capability=tell(
            "nvmlDeviceGetCudaComputeCapability", handle, take=lambda it: f"{it[0]}.{it[1]}"
        ),
        ecc=tell("nvmlDeviceGetEccMode", handle, take=lambda it: _name(_SWITCH, it[0])),
        mig=tell("nvmlDeviceGetMigMode", handle, take=lambda it: _name(_SWITCH, it[0])),
        persistence=tell(
            "nvmlDeviceGetPersistenceMode", handle, take=lambda it: _name(_SWITCH, it)
        ),
        compute_mode=tell(
            "nvmlDeviceGetComputeMode", handle, take=lambda it: _name(_COMPUTE_MODES, it)
        ),
        energy_period_seconds=Reading(None, "not detected: the energy counter was not sampled"),
    )


def _read_memory_used(session: Session, handle: Any) -> Reading:
    memory = session.memory(handle)
    if isinstance(memory, Failure):
        return Reading(None, memory.reason)
    return Reading(memory.used_bytes, memory.remark)


def _pick_limit(limits: Any, position: int) -> Reading:
    if isinstance(limits, Failure):
        return Reading(None, limits.reason)
    return Reading(limits[position] * nvml.WATTS_PER_MILLIWATT)


def _name(names: Mapping[int, str], code: int) -> str:
    return names.get(code, f"unknown code {code}")


def hash_uuid(uuid: str | None, salt: str) -> str:
    """Tells two GPUs of one record apart without naming them. Empty if there is no UUID."""
    if not uuid:
        return ""
    bare = uuid.removeprefix("GPU-").lower()
    return hashlib.sha256((salt + bare).encode()).hexdigest()[:12]


def describe_links(session: Session | Failure, identities: Sequence[Identity]) -> tuple[Link, ...]:
    """How every pair of GPUs is connected. GPUs that NVML does not find have no links."""
    if isinstance(session, Failure):
        return ()
    found = [(i, nvml.find_handle(session, each)) for i, each in enumerate(identities)]
    handles = [(i, each.handle) for i, each in found if isinstance(each, Found)]
    return tuple(
        Link(
            first=first,
            second=second,
            kind=_link_kind(session, here, there),
            peer_to_peer=session.tell(
                "nvmlDeviceGetP2PStatus",
                here,
                there,
                _READ,
                take=lambda it: _name(_PEER_STATUS, it),
            ),
        )
        for position, (first, here) in enumerate(handles)
        for second, there in handles[position + 1 :]
    )


def _link_kind(session: Session, here: Any, there: Any) -> Fact:
    remotes = _nvlink_remotes(session, here)
    if remotes:
        # Behind an NVSwitch the remote end is the switch, and only the driver knows who is beyond.
        address = session.tell("nvmlDeviceGetPciInfo", there, take=_bus_id).value
        status = session.ask("nvmlDeviceGetP2PStatus", here, there, _NVLINK)
        if address in remotes or status == 0:
            return Fact("NVLINK")
    return session.tell(
        "nvmlDeviceGetTopologyCommonAncestor", here, there, take=lambda it: _name(_TOPOLOGY, it)
    )


def _nvlink_remotes(session: Session, handle: Any) -> set[str | None]:
    remotes = set()
    for link in range(session.library.NVML_NVLINK_MAX_LINKS):
        active = session.ask("nvmlDeviceGetNvLinkState", handle, link)
        if isinstance(active, Failure):
            break
        if active:
            answer = session.tell("nvmlDeviceGetNvLinkRemotePciInfo", handle, link, take=_bus_id)
            remotes.add(answer.value)
    return remotes


def _bus_id(info: Any) -> str:
    text = info.busId
    return text.decode() if isinstance(text, bytes) else str(text)
