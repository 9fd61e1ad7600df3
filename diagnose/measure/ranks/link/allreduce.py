"""How long does an all-reduce take? Every size, one at a time and back to back, on every rank.

float32, SUM, in place, as DDP does it. Every size is warmed up before any is timed. The sums are
checked element by element before and after the timing, and wrong ones make the size worthless.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from diagnose.measure.machine.device import Device
from diagnose.measure.ranks.job.member import Member
from diagnose.measure.ranks.link.exact import count_wrong, fill
from diagnose.measure.ranks.link.sizes import (
    FLOAT_BYTES,
    LARGEST_BYTES,
    PlannedSize,
    bound_sizes,
    plan_sizes,
    read_free_memory,
)
from diagnose.records.codec import to_dict
from diagnose.records.ranks import SizeResult


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
    if not member.device.is_cpu:
        free, _ = torch.accelerator.get_memory_info(member.device.torch)
        return float(free)
    free_memory = read_free_memory(member.local_world_size).value
    # Where the system does not tell, the bound of the effort has to do.
    return float(LARGEST_BYTES * 4) if free_memory is None else free_memory


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
