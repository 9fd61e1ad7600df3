"""Where is scaling lost? The ledger from one rank alone to all ranks together, block by block.

Every series ran in the same interleaved blocks, so each loss is a difference within a block and
the drift of the machine cancels. Within a block the losses add up to the whole exactly.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from diagnose.analyze.derive import Difference
from diagnose.analyze.link.bandwidth import summarize
from diagnose.analyze.verdicts import MATTERS
from diagnose.records.header import Reading
from diagnose.records.ranks import SERIES_NAMES, Rank, ScalingRecord, SizeResult
from diagnose.records.stats import Interval, hodges_lehmann, log_ratio_interval

COMPUTE, INPUT, WAITING = "compute contention", "input contention", "waiting for the slowest rank"
COMMUNICATION, TRANSFER, SHORTFALL = "exposed communication", "transfer", "bandwidth shortfall"
REST = "rest (optimizer and what is left)"

Steps = dict[str, list[list[float]]]  # series -> [rank][block], seconds per step


@dataclass(frozen=True)
class Loss:
    """One line of the ledger: seconds of a step that are lost, and what they are of the step."""

    name: str
    blocks: tuple[float, ...]
    cost: Difference


@dataclass(frozen=True)
class Ledger:
    """From the step alone to the step together."""

    ranks: int
    alone: Interval
    together: Interval  # of the slowest rank
    efficiency: Interval  # throughput together over as many times the throughput alone
    total: Loss
    losses: tuple[Loss, ...]  # add up to the total in every block
    communication: Loss  # exposed: transfer and shortfall in one
    # The full step less the step under no_sync, as the field report's script took it.
    original_communication: Loss
    transfer: Reading  # what the measured curve says all buckets take, hidden or not

    @property
    def causes(self) -> tuple[Loss, ...]:
        """The losses with the communication in one, largest first."""
        split = (TRANSFER, SHORTFALL, COMMUNICATION)
        whole = [each for each in self.losses if each.name not in split]
        return tuple(
            sorted([*whole, self.communication], key=lambda each: -each.cost.seconds.center)
        )

    @property
    def unassigned_seconds(self) -> float:
        """What the estimates leave: in every block the losses add up, their medians need not."""
        lost = math.fsum(each.cost.seconds.center for each in self.losses)
        return self.together.center - self.alone.center - lost


@dataclass(frozen=True)
class RankTimes:
    """One rank's share of the step together."""

    rank: Rank
    local: Interval  # its own work, nothing exchanged
    full: Interval
    excess: Interval  # its own work over the mean of all ranks, less 1
    waits: Interval  # for the slowest rank
    watts: Reading


def find_obstacle(record: ScalingRecord) -> str:
    """Empty, or why there is no ledger."""
    if len(record.ranks) < 2:
        return f"{len(record.ranks)} rank has no scaling; two are needed"
    by_name = {each.name: each for each in record.series}
    for name in SERIES_NAMES:
        series = by_name.get(name)
        ranks = 1 if name.startswith("alone") else len(record.ranks)
        if series is None:
            return f"the series '{name}' was not measured"
        if series.steps_per_slot < 1 or len(series.slot_seconds) < ranks:
            return f"the series '{name}' does not have the times of every rank"
        if not all(series.slot_seconds[:ranks]):
            return f"the series '{name}' has no finished block"
        if min(min(row) for row in series.slot_seconds[:ranks]) <= 0:
            return f"a slot of the series '{name}' took no time: the clock cannot resolve it"
    return ""


def build_ledger(record: ScalingRecord) -> Ledger | None:
    """None where a series is missing; find_obstacle says which."""
    if find_obstacle(record):
        return None
    steps = _steps(record)
    alone_full, alone_input, alone_resident = (
        steps[name][0] for name in ("alone full input", "alone local input", "alone local resident")
    )
    resident = _over_ranks(steps["together local resident"], statistics.fmean)
    local = _over_ranks(steps["together local input"], statistics.fmean)
    slowest = _over_ranks(steps["together local input"], max)
    synchronised = _over_ranks(steps["together synchronised input"], max)
    full = _over_ranks(steps["together full input"], max)

    compute = _minus(resident, alone_resident)
    reading = _minus(_minus(local, resident), _minus(alone_input, alone_resident))
    waiting = _minus(slowest, local)
    exposed = _minus(synchronised, slowest)
    total = _minus(full, alone_full)
    rest = total
    for known in (compute, reading, waiting, exposed):
        rest = _minus(rest, known)

    def lose(name: str, values: Sequence[float]) -> Loss:
        shares = [value / step for value, step in zip(values, full, strict=True)]
        cost = Difference(hodges_lehmann(values), hodges_lehmann(shares), len(values))
        return Loss(name, tuple(values), cost)

    transfer = transfer_seconds(record)
    return Ledger(
        ranks=len(record.ranks),
        alone=hodges_lehmann(alone_full),
        together=hodges_lehmann(full),
        efficiency=log_ratio_interval(alone_full, full).map(math.exp),
        total=lose("all", total),
        losses=(
            lose(COMPUTE, compute),
            lose(INPUT, reading),
            lose(WAITING, waiting),
            *(lose(name, values) for name, values in _split(exposed, transfer)),
            lose(REST, rest),
        ),
        communication=lose(COMMUNICATION, exposed),
        original_communication=lose("full step less no_sync", _minus(full, slowest)),
        transfer=transfer,
    )


def rank_times(record: ScalingRecord) -> list[RankTimes]:
    """Every rank beside the others; empty where there is no ledger."""
    if find_obstacle(record):
        return []
    steps = _steps(record)
    local, full = steps["together local input"], steps["together full input"]
    means, slowest = _over_ranks(local, statistics.fmean), _over_ranks(local, max)
    unread = Reading(None, "power was not read")
    return [
        RankTimes(
            rank=rank,
            local=hodges_lehmann(local[place]),
            full=hodges_lehmann(full[place]),
            excess=hodges_lehmann(
                [own / mean - 1 for own, mean in zip(local[place], means, strict=True)]
            ),
            waits=hodges_lehmann(_minus(slowest, local[place])),
            watts=record.watts[place] if place < len(record.watts) else unread,
        )
        for place, rank in enumerate(record.ranks)
    ]


def find_straggler(times: Sequence[RankTimes]) -> RankTimes | None:
    """The rank that is behind the others in a way that a whole interval proves."""
    late = [each for each in times if each.excess.is_above(MATTERS)]
    return max(late, key=lambda each: each.excess.center, default=None)


def transfer_seconds(record: ScalingRecord) -> Reading:
    """What all buckets of a step take one after the other; their own sizes were measured."""
    seconds = dict(curve_points(record.curve))
    if not record.bucket_bytes:
        return Reading(None, "the buckets of DDP were not recorded")
    if not all(nbytes in seconds for nbytes in record.bucket_bytes):
        return Reading(None, "not every bucket size has a measured all-reduce")
    return Reading(math.fsum(seconds[nbytes] for nbytes in record.bucket_bytes))


def curve_points(curve: Sequence[SizeResult]) -> list[tuple[int, float]]:
    """Bytes and seconds of every sound size, smallest first."""
    sizes = [summarize(each, len(each.latency_seconds)) for each in curve]
    speeds = [each.single or each.window for each in sizes]
    return sorted((each.nbytes, each.seconds.center) for each in speeds if each is not None)


def _split(exposed: Sequence[float], transfer: Reading) -> list[tuple[str, Sequence[float]]]:
    known = transfer.value
    if known is None:
        return [(COMMUNICATION, exposed)]
    explained = [min(known, each) for each in exposed]
    return [(TRANSFER, explained), (SHORTFALL, _minus(exposed, explained))]


def _steps(record: ScalingRecord) -> Steps:
    """Seconds per step of the blocks that every series finished."""
    timed = {}
    for series in record.series:
        ranks = 1 if series.name.startswith("alone") else len(record.ranks)
        timed[series.name] = (series.steps_per_slot, series.slot_seconds[:ranks])
    blocks = min(len(row) for name in SERIES_NAMES for row in timed[name][1])
    return {
        name: [[seconds / timed[name][0] for seconds in row[:blocks]] for row in timed[name][1]]
        for name in SERIES_NAMES
    }


def _over_ranks(
    rows: Sequence[Sequence[float]], combine: Callable[[Sequence[float]], float]
) -> list[float]:
    return [combine(block) for block in zip(*rows, strict=True)]


def _minus(first: Sequence[float], second: Sequence[float]) -> list[float]:
    return [a - b for a, b in zip(first, second, strict=True)]
