"""How would this job run on more ranks than there are? A model of the step, from measured parts.

The step alone, the backward pass and the buckets are measured; only the all-reduces are modelled,
by the textbook costs of ring and tree, and how much of them the backward pass can hide.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from diagnose.analyze.scaling.cluster_links import Interconnect, Wire


@dataclass(frozen=True)
class Job:
    """What a step is made of on one rank, measured."""

    alone_seconds: float
    contention_seconds: float  # that ranks cost each other beside communication
    backward_seconds: float
    bucket_bytes: tuple[int, ...]  # first all-reduced first

    def __post_init__(self) -> None:
        if self.alone_seconds <= 0 or self.backward_seconds < 0 or self.contention_seconds < 0:
            raise ValueError("a job needs a positive step and no negative part")


@dataclass(frozen=True)
class Prediction:
    """One step of the job on so many ranks."""

    ranks: int
    hosts: int | None  # None: not known, all ranks as they were measured
    algorithms: tuple[str, ...]
    transfer_seconds: float  # of all buckets, hidden or not
    exposed_seconds: float
    step_seconds: float
    efficiency: float


def simulate(job: Job, ranks: int, link: Interconnect) -> Prediction:
    """The same batch per rank, so that perfect scaling keeps the step as long as it is alone."""
    if ranks < 1:
        raise ValueError(f"{ranks} is no number of ranks")
    hosts = None if link.ranks_per_host is None else math.ceil(ranks / link.ranks_per_host)
    if ranks == 1:
        return Prediction(1, 1, (), 0.0, 0.0, job.alone_seconds, 1.0)
    transfers = [_all_reduce(nbytes, ranks, hosts, link) for nbytes in job.bucket_bytes]
    exposed = expose([seconds for seconds, _ in transfers], job)
    step = job.alone_seconds + job.contention_seconds + exposed
    return Prediction(
        ranks=ranks,
        hosts=hosts,
        algorithms=tuple(dict.fromkeys(name for _, name in transfers)),
        transfer_seconds=math.fsum(seconds for seconds, _ in transfers),
        exposed_seconds=exposed,
        step_seconds=step,
        efficiency=job.alone_seconds / step,
    )


def expose(transfers: Sequence[float], job: Job) -> float:
    """Seconds by which the last bucket arrives after the backward pass.

    A bucket is ready when its share of the backward pass is done, taken as its share of the
    bytes; buckets travel one after the other.
    """
    total, ready_bytes, free = sum(job.bucket_bytes), 0, 0.0
    for nbytes, seconds in zip(job.bucket_bytes, transfers, strict=True):
        ready_bytes += nbytes
        ready = job.backward_seconds * (ready_bytes / total if total else 1.0)
        free = max(free, ready) + seconds
    return max(0.0, free - job.backward_seconds)


def ring_seconds(nbytes: float, ranks: int, wire: Wire) -> float:
    hops = 2 * (ranks - 1)
    return hops * wire.hop_seconds + hops / ranks * nbytes / wire.bytes_per_second


def tree_seconds(nbytes: float, ranks: int, wire: Wire) -> float:
    """Up and down, cut into so many chunks that all levels send at once."""
    levels = math.ceil(math.log2(ranks))
    return 2 * levels * wire.hop_seconds + 2 * nbytes / wire.bytes_per_second


def _all_reduce(
    nbytes: int, ranks: int, hosts: int | None, link: Interconnect
) -> tuple[float, str]:
    if link.between is None or link.ranks_per_host is None or hosts is None or hosts == 1:
        return _flat(nbytes, ranks, link.inside)
    # Reduce-scatter inside, all-reduce of every rank's shard between hosts, all-gather inside:
    # the first and the last are the two halves of a ring.
    inside = ring_seconds(nbytes, link.ranks_per_host, link.inside)
    shared = link.between.bytes_per_second / link.ranks_per_adapter
    wire = Wire(link.between.hop_seconds, shared)
    between, name = _flat(nbytes / link.ranks_per_host, hosts, wire)
    return inside + between, f"ring inside, {name} between hosts"


def _flat(nbytes: float, ranks: int, wire: Wire) -> tuple[float, str]:
    """The faster of the two, as a tuner would choose."""
    return min(
        (ring_seconds(nbytes, ranks, wire), "ring"), (tree_seconds(nbytes, ranks, wire), "tree")
    )
