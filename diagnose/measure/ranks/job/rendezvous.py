"""How do the ranks find each other? Their place in the job, the store, and the first handshake.

torch is loaded inside the functions that need it: reading the place must cost nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

_LARGEST_PORT = 2**16 - 1
# A store that does not answer for so long is out of reach: a dead host or a cut link.
STORE_SECONDS = 5.0

Answer = TypeVar("Answer")


class Refusal(Exception):
    """What was asked for cannot be had here; the message says what to do."""


class NoRendezvous(Exception):
    """The ranks did not come together; the message says why and what to do."""


@dataclass(frozen=True)
class Place:
    """One process of the job, and where all of them meet."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node: int
    nodes: int
    address: str
    port: int
    restart: str  # how often torchrun has restarted the job: old keys must not be taken for new
    has_store: bool  # torchrun keeps one; otherwise rank 0 does

    def as_environment(self) -> dict[str, str]:
        """The variables that a process in this place is started with."""
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_RANK": str(self.local_rank),
            "LOCAL_WORLD_SIZE": str(self.local_world_size),
            "GROUP_RANK": str(self.node),
            "GROUP_WORLD_SIZE": str(self.nodes),
            "MASTER_ADDR": self.address,
            "MASTER_PORT": str(self.port),
            "TORCHELASTIC_RESTART_COUNT": self.restart,
            "TORCHELASTIC_USE_AGENT_STORE": str(self.has_store),
        }


def read_place(environment: Mapping[str, str] = os.environ) -> Place:
    """The place that torchrun, or anything that sets the same variables, gave this process."""
    missing = [
        name
        for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
        if not environment.get(name)
    ]
    if missing:
        raise Refusal(f"no job to take part in: {', '.join(missing)} not set")

    def number(name: str, default: int) -> int:
        text = environment.get(name, str(default))
        if not text.isdecimal():
            raise Refusal(f"{name} must be a whole number, not {text!r}")
        return int(text)

    rank, world_size = number("RANK", 0), number("WORLD_SIZE", 1)
    local_world_size = number("LOCAL_WORLD_SIZE", world_size)
    port = number("MASTER_PORT", 0)
    if not rank < world_size:
        raise Refusal(
            f"RANK={rank} does not fit WORLD_SIZE={world_size}; "
            f"ranks go from 0 to {world_size - 1}, so start all with the true number of processes"
        )
    if not 0 < port <= _LARGEST_PORT:
        raise Refusal(f"MASTER_PORT={port} is no port; choose one from 1 to {_LARGEST_PORT}")
    return Place(
        rank=rank,
        world_size=world_size,
        local_rank=number("LOCAL_RANK", rank % max(1, local_world_size)),
        local_world_size=local_world_size,
        node=number("GROUP_RANK", rank // max(1, local_world_size)),
        nodes=number("GROUP_WORLD_SIZE", -(-world_size // max(1, local_world_size))),
        address=environment["MASTER_ADDR"],
        port=port,
        restart=environment.get("TORCHELASTIC_RESTART_COUNT", "0"),
        has_store=environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
    )


def open_store(place: Place, seconds: float) -> Store:
    """A connection to the store of the job; rank 0 keeps the store itself if nobody does yet."""
    from torch.distributed import DistError, TCPStore  # type: ignore[attr-defined]

    try:
        return TCPStore(
            place.address,
            place.port,
            is_master=place.rank == 0 and not place.has_store,
            timeout=timedelta(seconds=seconds),
            wait_for_workers=False,
        )
    except (DistError, RuntimeError) as error:
        where = f"{place.address}:{place.port}"
        if "EADDRINUSE" in str(error):
            raise NoRendezvous(
                f"port {place.port} is taken by another process; choose a free one with "
                "torchrun's --master-port, or with MASTER_PORT"
            ) from None
        raise NoRendezvous(
            f"no rendezvous at {where} within {seconds:g} s; check that rank 0 runs there, that "
            "the address and port are the same on every host, and that no firewall is between"
        ) from None


def open_rooms(place: Place, store: Store, attempt: str) -> Store:
    """The part of the store that belongs to this attempt only."""
    from torch.distributed.distributed_c10d import PrefixStore

    return PrefixStore(f"diagnose/{place.restart}/{attempt}", store)


def meet(store: Store, rank: int, world_size: int, torch_version: str, seconds: float) -> None:
    """Wait for every rank, and make sure that all mean the same job and the same torch."""
    deadline = time.monotonic() + seconds
    mine = {"world_size": world_size, "torch": torch_version}
    store.set(f"hello/{rank}", json.dumps(mine))
    for other in range(world_size):
        left = max(0.001, deadline - time.monotonic())
        hello = _hear(store, f"hello/{other}", left)
        if hello is None:
            came = sum(store.check([f"hello/{each}"]) for each in range(world_size))
            raise NoRendezvous(
                f"only {came} of {world_size} ranks appeared within {seconds:g} s; start as many "
                f"processes as WORLD_SIZE={world_size} says, or mend --nnodes and --nproc-per-node"
            )
        if hello["world_size"] != world_size:
            raise NoRendezvous(
                f"the ranks disagree about their number: rank {other} was started for "
                f"{hello['world_size']}, rank {rank} for {world_size}; start all with the same "
                "--nnodes and --nproc-per-node"
            )
        if hello["torch"] != torch_version:
            raise NoRendezvous(
                f"mixed torch versions: rank {other} has {hello['torch']}, rank {rank} has "
                f"{torch_version}; install the same version on every host"
            )


def _hear(store: Store, key: str, seconds: float) -> dict[str, Any] | None:
    from torch.distributed import DistError

    try:
        store.wait([key], timedelta(seconds=seconds))
    except (DistError, RuntimeError):
        return None
    heard: dict[str, Any] = json.loads(store.get(key))
    return heard


class Questions:
    """Asks the store in a thread: across a link that was cut, an answer may never come."""

    def __init__(self) -> None:
        self._open: threading.Thread | None = None

    def ask(self, work: Callable[[], Answer]) -> list[Answer]:
        """The answer, if it comes in time; nothing is asked while an earlier question is open."""
        answers: list[Answer] = []

        def try_it() -> None:
            with contextlib.suppress(RuntimeError):  # the store, and all in it, is gone
                answers.append(work())

        if self._open is not None and self._open.is_alive():
            return []
        self._open = threading.Thread(target=try_it, daemon=True, name="store-question")
        self._open.start()
        self._open.join(STORE_SECONDS)
        return answers


def is_sibling(pid: int) -> bool:
    """Whether it runs and has our parent; a stranger may get its number, or see another one."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    state, parent = fields[0], int(fields[1])
    return parent == os.getppid() and state not in ("Z", "X")


@contextlib.contextmanager
def explain_group_errors(backend: str, seconds: float) -> Iterator[None]:
    """A process group that cannot be made is a rendezvous that failed, told in one sentence."""
    from torch.distributed import DistError

    try:
        yield
    except (DistError, RuntimeError) as error:
        if "CUDA" in str(error):
            raise  # the device's own complaint says more
        raise NoRendezvous(
            f"the ranks met, but {backend} could not connect them within {seconds:g} s; "
            "name the network interface between the hosts with GLOO_SOCKET_IFNAME or "
            "NCCL_SOCKET_IFNAME, and check the firewall"
        ) from None
