"""Who is a rank? The process that does the collective work, and what a program sees of it.

A program is a module with `run(member, request)`. It must call `at` before anything that takes
longer than a moment: a rank that is silent for longer than the time-out is taken for hung.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from diagnose.measure.machine.allocator import keep_freed_memory
from diagnose.measure.machine.describe import ROOT, count_cores, identities, probe, read_cpu_model
from diagnose.measure.machine.device import Device, DeviceError, open_device
from diagnose.measure.machine.out_of_memory import is_out_of_memory
from diagnose.measure.process import Parent
from diagnose.measure.ranks.job.ends import Kind
from diagnose.measure.ranks.job.rendezvous import (
    NoRendezvous,
    Place,
    Refusal,
    explain_group_errors,
    meet,
    open_rooms,
    open_store,
    read_place,
)
from diagnose.measure.words import name_missing_package, one_sentence
from diagnose.records.codec import to_dict
from diagnose.records.header import Reading
from diagnose.records.ranks import Rank

# How long a rank may go without a word in a loop that says `still`.
STILL_SECONDS = 1.0
# What gloo, NCCL and the store say when another rank is to blame.
_PEER_IS_LATE = ("Timed out waiting", "timed out", "Timeout", "timeout")
_PEER_IS_GONE = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "Connection refused",
    "remote process exited",
)


class Member:
    """One rank at work, as its program sees it."""

    def __init__(
        self, place: Place, device: Device, backend: str, timeout_seconds: float, parent: Parent
    ) -> None:
        self.rank = place.rank
        self.local_rank = place.local_rank
        self.local_world_size = place.local_world_size
        self.world_size = place.world_size
        self.node = place.node
        self.nodes = place.nodes
        self.device = device
        self.backend = backend
        self.timeout_seconds = timeout_seconds
        self.where = "start"
        self._said = time.monotonic()
        self._parent = parent
        # NCCL moves nothing that lives in host memory, so words and times have their own group.
        self._words = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_seconds))

    def at(self, text: str) -> None:
        """Say where this rank is: what goes on from "during the ..."."""
        self.where = text
        self._said = time.monotonic()
        self._parent.tell("at", text)

    def still(self) -> None:
        """Say that this rank is still where it was; costs nothing most of the time."""
        if time.monotonic() - self._said > STILL_SECONDS:
            self.at(self.where)

    def emit(self, kind: str, content: object) -> None:
        """Hand a result to the supervisor. Only rank 0 speaks: its record is the job's."""
        if self.rank == 0:
            self._parent.tell(kind, content)

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        """The values of every rank, as [rank][sample], on every rank."""
        return self.gather_objects(list(values))

    def gather_objects(self, value: Any) -> list[Any]:
        """One picklable value of every rank, on every rank."""
        received: list[Any] = [None] * self.world_size
        dist.all_gather_object(received, value, group=self._words)
        return received

    def broadcast(self, value: Any) -> Any:
        """The value of rank 0, on every rank."""
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self._words)
        return box[0]

    def barrier(self) -> None:
        """Wait until every rank is here; work given to the device is not waited for."""
        dist.barrier(group=self._words)


@dataclass(frozen=True)
class _Order:
    program: str
    request: Mapping[str, Any]  # "device" and "backend" are understood for every program
    timeout_seconds: float
    attempt: str


def main() -> NoReturn:
    """Be one rank until its program ends; never wait for a library's tidy end."""
    keep_freed_memory()
    parent = Parent()
    _, content = next(parent.requests())
    order = _Order(**content)
    member: Member | None = None
    # The one broad except: whatever a backend or a model raises must end as one sentence.
    try:
        member = _join(order, parent)
        # Every supervisor must know the backend, so this one line is not only rank 0's to say.
        parent.tell("ready", _describe(member))
        program = importlib.import_module(order.program)
        program.run(member, order.request)
        # Rank 0 may keep the store, so nobody leaves before all are done.
        member.at("end")
        member.barrier()
        parent.tell("end", {"kind": "done"})
        code = 0
    except Exception as error:
        traceback.print_exc()
        kind, reason = describe_error(error, order.timeout_seconds)
        where = member.where if member else "rendezvous"
        parent.tell("end", {"kind": kind, "reason": reason, "where": where})
        code = 1
    sys.stderr.flush()
    # A process group whose peers are gone can block its own destructor.
    os._exit(code)


def _join(order: _Order, parent: Parent) -> Member:
    """Find the others and make the process group."""
    parent.tell("at", "rendezvous")
    place = read_place()
    device = _open_own_device(order.request.get("device"), place)
    backend = choose_backend(order.request.get("backend"), device)
    torch.set_num_threads(max(1, count_cores() // place.local_world_size))
    seconds = order.timeout_seconds
    store = open_rooms(place, open_store(place, seconds), order.attempt)
    meet(store, place.rank, place.world_size, str(torch.__version__), seconds)
    with explain_group_errors(backend, seconds):
        dist.init_process_group(
            backend,
            store=PrefixStore("group", store),
            rank=place.rank,
            world_size=place.world_size,
            timeout=timedelta(seconds=seconds),
            device_id=None if device.is_cpu or backend == "gloo" else device.torch,
        )
        member = Member(place, device, backend, seconds, parent)
        member.barrier()
    return member


def _open_own_device(kind: str | None, place: Place) -> Device:
    """The device of this rank: on a host with several, each rank takes its own."""
    try:
        device = open_device(kind)
    except DeviceError as error:
        raise Refusal(str(error)) from None
    if device.is_cpu:
        return device
    count = torch.accelerator.device_count()
    if place.local_rank >= count:
        raise Refusal(
            f"rank {place.rank} needs {device.kind} device {place.local_rank}, but this host has "
            f"{count}; start at most --nproc-per-node={count}, or choose --device cpu"
        )
    torch.accelerator.set_device_index(place.local_rank)
    device.torch = torch.device(device.kind, place.local_rank)
    return device


def choose_backend(asked: str | None, device: Device) -> str:
    """The backend asked for, else the device's own; one that cannot work here is refused."""
    backend = asked or dist.get_default_backend_for_device(device.torch)
    if backend == "nccl" and device.is_cpu:
        raise Refusal(
            "backend 'nccl' moves CUDA tensors only and this run uses the CPU; "
            "choose --backend gloo, or a torch build for CUDA"
        )
    if not dist.is_backend_available(backend):
        have = [each for each in ("gloo", "nccl", "mpi", "xccl") if dist.is_backend_available(each)]
        raise Refusal(
            f"backend '{backend}' is not available in this torch {torch.__version__}; "
            f"choose --backend {' or '.join(have)}"
        )
    return backend


def _describe(member: Member) -> dict[str, Any]:
    """Where every rank runs, before anything is measured; the machine is that of rank 0."""
    device = member.device
    seen = identities(device.kind)
    name = seen[member.local_rank].name if seen else read_cpu_model(ROOT).value
    bus = seen[member.local_rank].pci_bus_id if seen else None
    rank = Rank(
        rank=member.rank,
        local_rank=member.local_rank,
        node=member.node,
        device_name=name or device.kind,
        numa_node=read_numa_node(device.is_cpu, bus),
        torch_version=str(torch.__version__),
        threads=torch.get_num_threads(),
    )
    return {
        "machine": to_dict(probe(device.kind)) if member.rank == 0 else None,
        "ranks": member.gather_objects(to_dict(rank)),
        "identities": [to_dict(each) for each in seen],
        "backend": member.backend,
        "nodes": member.nodes,
        "is_fake": device.is_fake,
    }


def read_numa_node(is_cpu: bool, pci_bus_id: str | None, root: Path = ROOT) -> Reading:
    """The NUMA node that a GPU hangs on; a CPU rank may use all of them."""
    if is_cpu:
        return Reading(None, "a rank on the CPU may use every NUMA node")
    if pci_bus_id is None:
        return Reading(None, "this device does not tell its PCI address")
    # The kernel writes the domain with four digits, NVML with eight.
    path = root / "sys/bus/pci/devices" / pci_bus_id.lower()[-12:] / "numa_node"
    try:
        node = int(path.read_text())
    except (OSError, ValueError):
        return Reading(None, "the kernel does not tell the NUMA node of this device")
    return Reading(float(node)) if node >= 0 else Reading(None, "this machine has no NUMA nodes")


def describe_error(error: Exception, timeout_seconds: float) -> tuple[Kind, str]:
    """What kind of end an exception is, and what goes on from "rank 1 ..."."""
    if isinstance(error, Refusal):
        return "refused", str(error)
    if missing := name_missing_package(error):
        return "refused", missing
    if isinstance(error, NoRendezvous):
        return "no rendezvous", str(error)
    text = str(error)
    if is_out_of_memory(error, torch.OutOfMemoryError):
        return "failed", f"ran out of memory ({one_sentence(text)})"
    if isinstance(error, (dist.DistError, RuntimeError)):
        # The library's own words carry addresses and paths; which rank it was, no one of them
        # knows: the supervisors find out.
        if any(words in text for words in _PEER_IS_GONE):
            return "lost peers", "lost the connection to another rank"
        if any(words in text for words in _PEER_IS_LATE):
            return "lost peers", f"waited {timeout_seconds:g} s for another rank in vain"
    # The store is another process's, so whatever breaks the connection to it is not this rank.
    if isinstance(error, (dist.DistNetworkError, dist.DistStoreError)):
        return "lost peers", "lost the connection to the store of the job"
    return "failed", f"raised {type(error).__name__}: {one_sentence(text)}"


if __name__ == "__main__":
    main()
