"""What may be faster but changes the numbers? Each with what speaks for it, and what proves it."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import NamedTuple

from diagnose.analyze.script.claims import SMALLEST_SHARE, gain_of, usual_seconds
from diagnose.analyze.script.speed import BOUND, measure_speed
from diagnose.analyze.units import number, percent
from diagnose.records.diagnosis import Option
from diagnose.records.script import TENSOR_FLOAT, ScriptRecord

# Of all FLOPs: what fewer are computed in is not worth changing.
SMALLEST_FLOPS_SHARE = 0.2
# Times as fast: below, a whole step cannot gain what would be worth a try.
WORTH_TRYING = 1.2


class _Named(NamedTuple):
    change: str  # behind --with
    what: str
    why: str
    changes: str


def find_options(record: ScriptRecord) -> tuple[Option, ...]:
    if not record.step_seconds:
        return ()
    mean = statistics.fmean(record.step_seconds)
    tried = {each.change: each for each in record.tried_options}
    found = [*_precision(record), *_model(record, mean), *_loader(record, mean)]
    return tuple(
        Option(
            each.what,
            each.why,
            each.changes,
            f"diagnose prove {record.script} --with {each.change}",
            tried.get(each.change),
        )
        for each in [*found, *_update(record, mean)]
    )


def _precision(record: ScriptRecord) -> Iterator[_Named]:
    """Lower precision, where much is computed in float32 and this device is faster in it."""
    ceilings, flops = record.ceilings, record.flops_by_precision
    share = flops.get("float32", 0.0) / sum(flops.values()) if any(flops.values()) else 0.0
    if ceilings is None or not ceilings.flops_per_second or share < SMALLEST_FLOPS_SHARE:
        return
    low = ceilings.low_precision
    tensor_float = 'torch.set_float32_matmul_precision("high")'
    for change, what, name, rate in (
        ("autocast", f"autocast to {low}", low, ceilings.low_flops_per_second),
        ("tf32", tensor_float, TENSOR_FLOAT, ceilings.tensor_float_flops_per_second),
    ):
        if rate >= WORTH_TRYING * ceilings.flops_per_second:
            times = number(rate / ceilings.flops_per_second, 2)
            yield _Named(
                change,
                what,
                f"{percent(share)} of the FLOPs are float32 matrix products, and a large {name} "
                f"product is {times} times as fast here",
                "the numbers: results are no longer equal, so compare what the training reaches",
            )


def _model(record: ScriptRecord, mean: float) -> Iterator[_Named]:
    """Where the passes of the model take much longer than their arithmetic."""
    used = measure_speed(record, mean).utilization.value
    passes = sum(record.phases.get(phase, 0.0) for phase in ("forward", "backward")) / mean
    # Operators of compiled code are not counted.
    if used is None or not record.mapped or passes - used < 1 - 1 / WORTH_TRYING:
        return
    why = (
        f"forward and backward pass take {percent(passes)} of a step, and their matrix products "
        f"at the speed of large ones {percent(used)}"
    )
    yield _Named("compile", "torch.compile of the model", why, "the rounding of results")
    batch = next((each.batch_size for each in record.loaders if each.batch_size), None)
    if batch is not None and used < BOUND:
        changes = "the training, which takes fewer and larger steps (and another learning rate)"
        yield _Named("batch", f"batches of {2 * batch} instead of {batch}", why, changes)


def _loader(record: ScriptRecord, mean: float) -> Iterator[_Named]:
    share = record.phases.get("input", 0.0) / mean
    idle = [each for each in record.loaders if not each.workers and each.cores != 1]
    if idle and share >= SMALLEST_SHARE:
        yield _Named(
            "workers",
            "worker processes in the DataLoader",
            f"it has none, and waiting for its batches takes {percent(share)} of a step",
            "the random numbers that are drawn for a batch",
        )


def _update(record: ScriptRecord, mean: float) -> Iterator[_Named]:
    share = record.phases.get("optimizer", 0.0) / mean
    for change in record.changes:
        fuses = change.cause == "optimizer" and change.what.startswith("fused=True in ")
        if not fuses or change.failed or share < SMALLEST_SHARE:
            continue
        gain = gain_of(record.windows, change, usual_seconds(record))
        if gain is not None and gain.is_above(0.0):
            yield _Named(
                "fused",
                change.what,
                f"the update takes {percent(share)} of a step; on copies of the parameters this "
                f"saved {number(gain.center * 1e3, 3)} ms",
                "the rounding of results",
            )
            return
