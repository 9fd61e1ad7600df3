"""How would this job run on more ranks than there are? A model of the step, from measured parts.

The step alone, the backward pass and the buckets are measured; only the all-reduces are modelled,
by the textbook costs of ring and tree, and how much of them the backward pass can hide. A model
that misses the ranks at hand is refused.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from diagnose.analyze.line_fit import Point, theil_sen_slope
from diagnose.analyze.links import MEASURED, Cluster, KnownLink, find_cluster
from diagnose.analyze.scaling.ledger import Ledger, build_ledger, curve_points, find_obstacle
from diagnose.analyze.units import percent
from diagnose.records.ranks import ScalingRecord
from diagnose.records.stats import Interval

# A model that misses the ranks at hand by more says nothing about ranks that are not.
LARGEST_ERROR = 0.25


class SimulationRefused(Exception):
    """There is nothing to extend, or the model misses what was measured; one sentence."""


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


@dataclass(frozen=True)
class Simulation:
    """The job of a record on other numbers of ranks, with the check that allows to believe it."""

    record: ScalingRecord
    cluster: Cluster
    measured: Interval  # the step of the ranks at hand
    check: Prediction  # and what the model says of it
    predictions: Sequence[Prediction]


def simulate_record(record: ScalingRecord, ranks: Sequence[int], link: str) -> Simulation:
    """The job of this record on so many ranks, or SimulationRefused."""
    ledger, label = build_ledger(record), record.header.label
    if ledger is None:
        raise SimulationRefused(
            f"the record '{label}' has no ledger to extend: {find_obstacle(record)}; "
            "run `torchrun --nproc-per-node=2 diagnose/ddp_scaling.py` again"
        )
    if not record.backward_seconds or not record.bucket_bytes:
        raise SimulationRefused(
            f"the record '{label}' has no backward pass or no buckets; measure again"
        )
    points = curve_points(record.curve)
    if not points:
        raise SimulationRefused(f"the record '{label}' has no measured all-reduce; measure again")
    job, own = read_job(record, ledger), measured_cluster(*fit_buckets(points), len(record.ranks))
    check = simulate(job, ledger.ranks, own)
    refuse_error(check, ledger.together.center)
    cluster = own if link == MEASURED else find_cluster(link)
    predictions = [simulate(job, count, cluster) for count in ranks]
    return Simulation(record, cluster, ledger.together, check, predictions)


def read_job(record: ScalingRecord, ledger: Ledger) -> Job:
    beside = ledger.total.cost.seconds.center - ledger.communication.cost.seconds.center
    return Job(
        alone_seconds=ledger.alone.center,
        # Below zero it is noise: ranks do not speed each other up.
        contention_seconds=max(0.0, beside),
        backward_seconds=statistics.median(record.backward_seconds),
        bucket_bytes=record.bucket_bytes,
    )


def fit_buckets(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """Latency and bytes per second: the median slope of all pairs, and the median of what is left.

    Where larger is not slower there is no line, and the largest size alone sets the rate.
    """
    slope = theil_sen_slope([Point(nbytes, seconds) for nbytes, seconds in points])
    if slope <= 0:
        return 0.0, points[-1][0] / points[-1][1]
    left = statistics.median(seconds - slope * nbytes for nbytes, seconds in points)
    return max(0.0, left), 1 / slope


def measured_cluster(alpha_seconds: float, bytes_per_second: float, ranks: int) -> Cluster:
    """The link under a measured line, seconds = alpha + bytes / rate, of an all-reduce.

    A ring of n ranks makes 2(n - 1) hops and sends 2(n - 1)/n of the bytes over every link.
    """
    hops, name = 2 * (ranks - 1), f"the link as measured with {ranks} ranks"
    rate = bytes_per_second * hops / ranks
    return Cluster(KnownLink(name, rate, alpha_seconds / hops, "this record"))


def refuse_error(prediction: Prediction, measured_seconds: float) -> None:
    error = prediction.step_seconds / measured_seconds - 1
    if abs(error) > LARGEST_ERROR:
        raise SimulationRefused(
            f"the simulation is refused: for the {prediction.ranks} ranks at hand it says "
            f"{1e3 * prediction.step_seconds:.4g} ms where {1e3 * measured_seconds:.4g} ms were "
            f"measured, {100 * error:+.0f} % where {percent(LARGEST_ERROR)} is allowed; the ledger "
            "in the report says where the time goes instead"
        )


def simulate(job: Job, ranks: int, cluster: Cluster) -> Prediction:
    """The same batch per rank, so that perfect scaling keeps the step as long as it is alone."""
    if ranks < 1:
        raise ValueError(f"{ranks} is no number of ranks")
    if ranks == 1:
        return Prediction(1, 1, (), 0.0, 0.0, job.alone_seconds, 1.0)
    per_host = cluster.ranks_per_host
    hosts = None if per_host is None else math.ceil(ranks / per_host)
    transfers = [_all_reduce(nbytes, ranks, hosts, cluster) for nbytes in job.bucket_bytes]
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


def ring_seconds(nbytes: float, ranks: int, link: KnownLink) -> float:
    hops = 2 * (ranks - 1)
    return hops * link.hop_seconds + hops / ranks * nbytes / link.bytes_per_second


def tree_seconds(nbytes: float, ranks: int, link: KnownLink) -> float:
    """Up and down, cut into so many chunks that all levels send at once."""
    levels = math.ceil(math.log2(ranks))
    return 2 * levels * link.hop_seconds + 2 * nbytes / link.bytes_per_second


def _all_reduce(nbytes: int, ranks: int, hosts: int | None, cluster: Cluster) -> tuple[float, str]:
    between, per_host = cluster.between, cluster.ranks_per_host
    if between is None or per_host is None or hosts is None or hosts == 1:
        return _flat(nbytes, ranks, cluster.inside)
    # Reduce-scatter inside, all-reduce of every rank's shard between hosts, all-gather inside:
    # the first and the last are the two halves of a ring.
    inside = ring_seconds(nbytes, per_host, cluster.inside)
    share = replace(between, bytes_per_second=between.bytes_per_second / cluster.ranks_per_adapter)
    outside, name = _flat(nbytes / per_host, hosts, share)
    return inside + outside, f"ring inside, {name} between hosts"


def _flat(nbytes: float, ranks: int, link: KnownLink) -> tuple[float, str]:
    """The faster of the two, as a tuner would choose."""
    return min(
        (ring_seconds(nbytes, ranks, link), "ring"), (tree_seconds(nbytes, ranks, link), "tree")
    )
