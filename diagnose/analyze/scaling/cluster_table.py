"""What does the simulation say of a measured job, and may it be believed? Refused where it errs."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from diagnose.analyze.line_fit import Point, theil_sen_slope
from diagnose.analyze.scaling.cluster import Job, Prediction, simulate
from diagnose.analyze.scaling.cluster_links import MEASURED, Interconnect, find_link, measured_link
from diagnose.analyze.scaling.ledger import Ledger, build_ledger, curve_points, find_obstacle
from diagnose.analyze.units import milliseconds, number, percent, scaled
from diagnose.records.ranks import ScalingRecord
from diagnose.records.stats import Interval
from diagnose.render.markdown import Align, clean, table

# A model that misses the ranks at hand by more says nothing about ranks that are not.
LARGEST_ERROR = 0.25

_HEADERS = (
    *("ranks", "hosts", "all-reduce", "all buckets ms", "exposed ms", "step ms"),
    *("efficiency", "samples/s"),
)
_ALIGN: tuple[Align, ...] = ("right", "right", "left", *("right",) * 5)


class SimulationRefused(Exception):
    """There is nothing to extend, or the model misses what was measured; one sentence."""


def scale_table(record: ScalingRecord, ranks: Sequence[int], link: str) -> str:
    """The job of this record on so many ranks, or SimulationRefused."""
    ledger = build_ledger(record)
    if ledger is None:
        raise SimulationRefused(
            f"the record '{record.header.label}' has no ledger to extend: {find_obstacle(record)}; "
            "run `torchrun --nproc-per-node=2 diagnose/ddp_scaling.py` again"
        )
    job, own = read_job(record, ledger), read_link(record)
    check = simulate(job, ledger.ranks, own)
    refuse_error(check, ledger.together.center)
    chosen = own if link == MEASURED else find_link(link)
    predictions = [simulate(job, count, chosen) for count in ranks]
    return render_scale(record, chosen, check, ledger.together, predictions)


def read_job(record: ScalingRecord, ledger: Ledger) -> Job:
    if not record.backward_seconds or not record.bucket_bytes:
        raise SimulationRefused(
            f"the record '{record.header.label}' has no backward pass or no buckets; measure again"
        )
    beside = ledger.total.cost.seconds.center - ledger.communication.cost.seconds.center
    return Job(
        alone_seconds=ledger.alone.center,
        # Below zero it is noise: ranks do not speed each other up.
        contention_seconds=max(0.0, beside),
        backward_seconds=statistics.median(record.backward_seconds),
        bucket_bytes=record.bucket_bytes,
    )


def read_link(record: ScalingRecord) -> Interconnect:
    """The wire under the measured all-reduces of the bucket sizes."""
    points = curve_points(record.curve)
    if not points:
        raise SimulationRefused(
            f"the record '{record.header.label}' has no measured all-reduce; measure again"
        )
    alpha_seconds, bytes_per_second = fit_buckets(points)
    return measured_link(alpha_seconds, bytes_per_second, len(record.ranks))


def fit_buckets(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """Latency and bytes per second: the median slope of all pairs, and the median of what is left.

    Where larger is not slower there is no line, and the largest size alone sets the rate.
    """
    several = [Point(nbytes, seconds) for nbytes, seconds in points]
    slope = theil_sen_slope(several) if len(several) > 1 else 0.0
    if slope <= 0:
        return 0.0, points[-1][0] / points[-1][1]
    left = statistics.median(seconds - slope * nbytes for nbytes, seconds in points)
    return max(0.0, left), 1 / slope


def refuse_error(prediction: Prediction, measured_seconds: float) -> None:
    error = prediction.step_seconds / measured_seconds - 1
    if abs(error) > LARGEST_ERROR:
        raise SimulationRefused(
            f"the simulation is refused: for the {prediction.ranks} ranks at hand it says "
            f"{1e3 * prediction.step_seconds:.4g} ms where {1e3 * measured_seconds:.4g} ms were "
            f"measured, {100 * error:+.0f} % where {percent(LARGEST_ERROR)} is allowed; the ledger "
            "in the report says where the time goes instead"
        )


def render_scale(
    record: ScalingRecord,
    link: Interconnect,
    check: Prediction,
    measured: Interval,
    predictions: Sequence[Prediction],
) -> str:
    """The table, what it assumes, and how well it hits the ranks at hand."""
    rows = [
        [
            str(each.ranks),
            "–" if each.hosts is None else str(each.hosts),
            " / ".join(each.algorithms) or "none",
            *(
                number(1e3 * seconds)
                for seconds in (each.transfer_seconds, each.exposed_seconds, each.step_seconds)
            ),
            percent(each.efficiency),
            number(each.ranks * record.samples_per_step / each.step_seconds),
        ]
        for each in predictions
    ]
    error = check.step_seconds / measured.center - 1
    lines = [
        f"{clean(record.workload.name)} of {clean(record.header.label)} on {link.title}: a "
        "simulation, no measurement.",
        "",
        table(_HEADERS, rows, _ALIGN),
        "",
        f"Self-check: for the {check.ranks} ranks at hand it says "
        f"{number(1e3 * check.step_seconds)} ms; measured were {milliseconds(measured)} ms "
        f"({100 * error:+.1f} %, refused beyond {percent(LARGEST_ERROR)}).",
        "",
        *(f"- {line}" for line in assumptions(link)),
    ]
    return "\n".join(lines) + "\n"


def assumptions(link: Interconnect) -> list[str]:
    wire = link.inside
    hops = f"{scaled(wire.bytes_per_second, 'B/s')} and {1e6 * wire.hop_seconds:.3g} µs per hop"
    lines = [
        "Every rank computes as fast as here, with the same batch per rank; nothing else differs.",
        f"{link.title}: {hops} ({link.source}).",
    ]
    if link.ranks_per_host is None:
        lines.append("More ranks are joined as these were, each by a wire of its own.")
    elif link.between is None:
        lines.append("One rank a host, each with an adapter of its own, no congestion.")
    else:
        lines.append(
            f"{link.ranks_per_host} ranks a host; between hosts {link.between_title}, one adapter "
            f"{_sharing(link)}, no congestion."
        )
    return [
        *lines,
        "Ring: 2(n−1) hops and 2(n−1)/n of the bytes. Tree: 2 log₂ n hops and 2 times the bytes, "
        "in chunks that fill all levels at once. The faster one is taken for each bucket.",
        "A bucket is ready when its share of the backward pass is done, by bytes; buckets travel "
        "one after the other, and the transfer does not slow the backward pass down.",
        "What ranks cost each other beside communication is as measured; waiting for the slowest "
        "of many ranks grows in truth and does not here.",
    ]


def _sharing(link: Interconnect) -> str:
    return "for each" if link.ranks_per_adapter == 1 else "for all of them"
