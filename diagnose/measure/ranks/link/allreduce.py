"""How long does an all-reduce take? Every size, one at a time and back to back, on every rank.

float32, SUM, in place, as DDP does it. Every size is warmed up before any is timed. The sums are
checked element by element before and after the timing, and wrong ones make the size worthless.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psutil
import torch
import torch.distributed as dist

from diagnose.measure.machine.device import Device
from diagnose.measure.ranks.job.member import Member
from diagnose.records.codec import to_dict
from diagnose.records.ranks import SizeResult

FLOAT_BYTES = 4
SMALLEST_BYTES = 2**10
LARGEST_BYTES = 2**30
# Four points for every factor of 256 show where latency ends and bandwidth begins.
STEP = 4
FIELD_REPORT_MEGABYTES = (4, 40, 200)
# DDP's defaults (torch.nn.parallel.DistributedDataParallel): a small first bucket, so that the
# first transfer begins early, then bucket_cap_mb=25, which counts in MiB.
FIRST_BUCKET_BYTES = 2**20
BUCKET_BYTES = 25 * 2**20
# The largest size may take this share of what is free: fills and checks need a little more, and
# the machine has to keep breathing.
MEMORY_SHARE = 0.25
# Element i of rank r is (31 i + 17 r) mod 251: whole numbers, so that float32 adds them without
# rounding for up to 67 000 ranks, and in any order. The period is a prime, because a chunk that
# lands in the wrong place is off by a round number of elements, which a round period cannot see.
PERIOD = 251
_INDEX_STEP = 31
_RANK_STEP = 17
# Rows that are compared at once: some MiB of intermediate results, however large the tensor.
_ROWS = 4096


@dataclass(frozen=True)
class Patience:
    """How long one size may take."""

    seconds_per_mode: float
    most_seconds: float  # of a single all-reduce; a slower size is left out
    largest_bytes_on_cpu: int


PATIENCE = {
    # The whole sweep in 40 s on two cores, where 256 MiB take about half a second.
    "quick": Patience(0.6, 1.5, 2**28),
    "full": Patience(5.0, 20.0, LARGEST_BYTES),
    "smoke": Patience(0.0, 1.5, 2**20),
}
FEWEST, MOST = 5, 20  # single all-reduces; 20 is what nccl-tests times
FEWEST_WINDOWS, MOST_WINDOWS = 3, 10
SHORTEST_WINDOW, LONGEST_WINDOW = 2, 20  # all-reduces in a window
WARMUPS = 5
# A large tensor is warm sooner: its pages and connections are touched by a single pass.
WARMUPS_WHEN_LARGE = 2
LARGE_BYTES = 2**22
EMPTY_PASSES = 101


@dataclass(frozen=True)
class PlannedSize:
    """One size, and why it is measured; one that does not fit says why not."""

    nbytes: int
    purpose: str
    skip_reason: str = ""


def plan_sizes(bound_bytes: int, model_bytes: int) -> list[PlannedSize]:
    """Every size, smallest first. The sweep ends at the bound; larger named sizes are skipped."""
    purposes: dict[int, list[str]] = {}
    nbytes = SMALLEST_BYTES
    while nbytes <= min(bound_bytes, LARGEST_BYTES):
        purposes.setdefault(nbytes, []).append("sweep")
        nbytes *= STEP
    for megabytes in FIELD_REPORT_MEGABYTES:
        name = f"{megabytes} MB of the field report"
        purposes.setdefault(megabytes * 10**6, []).append(name)
    purposes.setdefault(FIRST_BUCKET_BYTES, []).append("first bucket of 1 MiB")
    purposes.setdefault(BUCKET_BYTES, []).append("bucket of 25 MiB")
    purposes.setdefault(model_bytes // FLOAT_BYTES * FLOAT_BYTES, []).append("all gradients")
    return [
        PlannedSize(size, ", ".join(names), _explain_bound(size, bound_bytes))
        for size, names in sorted(purposes.items())
    ]


def _explain_bound(nbytes: int, bound_bytes: int) -> str:
    if nbytes <= bound_bytes:
        return ""
    return (
        f"over the bound of {bound_bytes} bytes (--max-bytes, the effort, or a quarter of the "
        "memory that was free)"
    )


def bound_sizes(free_bytes: Sequence[float], max_bytes: int) -> int:
    """The largest size that every rank can hold."""
    return min(max_bytes, LARGEST_BYTES, *(int(free * MEMORY_SHARE) for free in free_bytes))


def run(member: Member, request: Mapping[str, Any]) -> None:
    """Measure every size: emits one "plan", then one "size" after another.

    The request: "effort", None for the device's own; "model_bytes"; "max_bytes", None for the
    effort's own bound; and "sizes", a list of bytes that replaces the plan, or None.
    """
    effort = request["effort"] or ("quick" if member.device.is_cpu else "full")
    plan = _agree_on_plan(member, request, PATIENCE[effort])
    member.emit(
        "plan",
        {
            "effort": effort,
            "sizes": [each.nbytes for each in plan],
            "overhead_seconds": measure_overhead(member.device),
        },
    )
    for result in measure_sizes(member, plan, effort):
        member.emit("size", to_dict(result))


def measure_sizes(member: Member, plan: Sequence[PlannedSize], effort: str) -> Iterator[SizeResult]:
    """Every planned size, in order; all ranks must ask for the same."""
    patience = PATIENCE[effort]
    # One tensor for all: smaller sizes are its beginning.
    longest = max((each.nbytes for each in plan if not each.skip_reason), default=0)
    member.at(f"allocation of {longest} bytes")
    buffer = torch.zeros(longest // FLOAT_BYTES, device=member.device.torch)
    for planned, seconds in _warm_up(member, buffer, plan, patience):
        if planned.skip_reason:
            yield SizeResult(planned.nbytes, planned.purpose, "skipped", planned.skip_reason)
        else:
            part = buffer[: planned.nbytes // FLOAT_BYTES]
            yield _measure_size(member, part, planned, seconds, patience)


def _agree_on_plan(
    member: Member, request: Mapping[str, Any], patience: Patience
) -> list[PlannedSize]:
    if request.get("sizes"):
        return [PlannedSize(nbytes, "trial") for nbytes in request["sizes"]]
    bound = patience.largest_bytes_on_cpu if member.device.is_cpu else LARGEST_BYTES
    bound = bound_sizes(
        [free for (free,) in member.gather([_free_bytes(member)])],
        request.get("max_bytes") or bound,
    )
    return plan_sizes(bound, request["model_bytes"])


def _free_bytes(member: Member) -> float:
    """Memory that one rank may count on."""
    if member.device.is_cpu:
        return float(psutil.virtual_memory().available) / member.local_world_size
    free, _ = torch.accelerator.get_memory_info(member.device.torch)
    return float(free)


def measure_overhead(device: Device) -> float:
    """One pass through the timing loop with nothing in it."""
    return statistics.median(_time(device, lambda: None) for _ in range(EMPTY_PASSES))


def _time(device: Device, work: Callable[[], object]) -> float:
    device.synchronize()
    began = device.now()
    work()
    device.synchronize()
    return device.now() - began


def _warm_up(
    member: Member, buffer: torch.Tensor, plan: Sequence[PlannedSize], patience: Patience
) -> list[tuple[PlannedSize, float]]:
    """The plan, with the time of one all-reduce of each size; what is too slow is left out."""
    warmed: list[tuple[PlannedSize, float]] = []
    bytes_per_second = 0.0
    for planned in plan:
        expected = planned.nbytes / bytes_per_second if bytes_per_second else 0.0
        if not planned.skip_reason and expected > patience.most_seconds:
            reason = (
                f"one all-reduce would take about {expected:.0f} s, over the "
                f"{patience.most_seconds:g} s of this effort; --full has more patience"
            )
            planned = PlannedSize(planned.nbytes, planned.purpose, reason)
        if planned.skip_reason:
            warmed.append((planned, 0.0))
            continue
        member.at(f"warm-up of the all-reduce of {planned.nbytes} bytes")
        part = buffer[: planned.nbytes // FLOAT_BYTES]
        count = WARMUPS if planned.nbytes <= LARGE_BYTES else WARMUPS_WHEN_LARGE
        # All ranks must take the same decisions, so rank 0's clock decides.
        seconds = member.broadcast(min(_time_one(member, part, 1) for _ in range(count)))
        bytes_per_second = planned.nbytes / seconds
        warmed.append((planned, seconds))
    return warmed


def _measure_size(
    member: Member, buffer: torch.Tensor, planned: PlannedSize, seconds: float, patience: Patience
) -> SizeResult:
    """Check, time both ways, check again. `seconds` is what one all-reduce takes, about."""
    member.at(f"all-reduce of {planned.nbytes} bytes")
    before = _check(member, buffer)
    if sum(before):
        return SizeResult(
            nbytes=planned.nbytes,
            purpose=planned.purpose,
            status="invalid",
            reason=explain_wrong(before, buffer.numel(), "before"),
            wrong_before=sum(before),
        )
    # Zeros stay zeros, whereas any other sum of sums would soon run to infinity.
    buffer.zero_()
    budget = patience.seconds_per_mode
    count = _clamp(budget / seconds, FEWEST, MOST)
    singles = [_time_one(member, buffer, 1) for _ in range(count)]
    length = _clamp(budget / FEWEST_WINDOWS / seconds, SHORTEST_WINDOW, LONGEST_WINDOW)
    windows = _clamp(budget / length / seconds, FEWEST_WINDOWS, MOST_WINDOWS)
    backs = [_time_one(member, buffer, length) for _ in range(windows)]
    after = _check(member, buffer)
    return SizeResult(
        nbytes=planned.nbytes,
        purpose=planned.purpose,
        status="invalid" if sum(after) else "done",
        reason=explain_wrong(after, buffer.numel(), "after") if sum(after) else "",
        latency_seconds=_by_rank(member, singles),
        window_seconds=_by_rank(member, backs),
        iterations_per_window=length,
        wrong_before=0,
        wrong_after=sum(after),
    )


def _time_one(member: Member, buffer: torch.Tensor, count: int) -> float:
    """So many all-reduces in a row, between a barrier that is not timed and the device's end."""
    member.still()
    member.barrier()

    def work() -> None:
        for _ in range(count):
            dist.all_reduce(buffer)

    return _time(member.device, work)


def _check(member: Member, buffer: torch.Tensor) -> list[int]:
    """Wrong elements by rank, after one all-reduce of fresh numbers."""
    fill(buffer, member.rank)
    dist.all_reduce(buffer)
    member.device.synchronize()
    return [int(wrong) for (wrong,) in member.gather([count_wrong(buffer, member.world_size)])]


def explain_wrong(wrong: Sequence[int], elements: int, when: str) -> str:
    ranks = [str(rank) for rank, count in enumerate(wrong) if count]
    return (
        f"CORRUPT: {sum(wrong)} of {elements * len(wrong)} sums were wrong {when} the timing, "
        f"on rank {', '.join(ranks)}"
    )


def _by_rank(member: Member, seconds: Sequence[float]) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(each) for each in member.gather(seconds))


def _clamp(value: float, fewest: int, most: int) -> int:
    return int(min(most, max(fewest, value)))


def fill(buffer: torch.Tensor, rank: int) -> None:
    """Write this rank's share in place."""
    pattern = _pattern(rank).to(buffer.device)
    for rows in _rows(buffer):
        rows.copy_(pattern[: rows.shape[-1]].expand_as(rows))


def count_wrong(buffer: torch.Tensor, world_size: int) -> int:
    """Elements that are not the sum over all ranks."""
    total = torch.stack([_pattern(rank) for rank in range(world_size)]).sum(0).to(buffer.device)
    return sum(int((rows != total[: rows.shape[-1]]).sum()) for rows in _rows(buffer))


def _pattern(rank: int) -> torch.Tensor:
    index = torch.arange(PERIOD)
    return ((index * _INDEX_STEP + rank * _RANK_STEP) % PERIOD).to(torch.float32)


def _rows(buffer: torch.Tensor) -> Iterator[torch.Tensor]:
    """Views that begin with a whole period each."""
    whole = buffer.numel() // PERIOD * PERIOD
    rows = buffer[:whole].view(-1, PERIOD)
    yield from (rows[first : first + _ROWS] for first in range(0, len(rows), _ROWS))
    if whole < buffer.numel():
        yield buffer[whole:]
