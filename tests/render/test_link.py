"""Are the numbers of the interconnect right, and is nothing wrong shown?"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diagnose.analyze.line_fit import Fit, Point, Unfit, fit_line
from diagnose.analyze.link.bandwidth import fit_sizes, measure_sizes, median_interval, summarize
from diagnose.analyze.link.verdict import judge
from diagnose.records.ranks import SizeResult
from diagnose.render.link import FIGURE_NAME, answer, figures, print_table
from tests.support.records.link import (
    bandwidth_record,
    ended,
    field_report,
    golden_record,
    gpu_machine,
    gpu_record,
    kinds,
    size_result,
    sizes,
)
from tests.support.rendered import rendered, told


def by_rank(*times: Sequence[float]) -> SizeResult:
    made = size_result(1_000_000)
    return replace(made, latency_seconds=tuple(map(tuple, times)), window_seconds=())


@pytest.mark.parametrize(("ranks", "factor"), [(2, 1.0), (4, 1.5), (8, 1.75)])
def test_bandwidths_of_one_size(ranks: int, factor: float) -> None:
    # Of each all-reduce the slowest rank counts, then the median.
    result = summarize(by_rank([1e-3, 2e-3, 5e-3], *[[2e-3, 1e-3, 2e-3]] * (ranks - 1)), ranks)
    assert result.single is not None
    assert (result.single.seconds.center, result.single.seconds.low) == (2e-3, None)
    assert result.single.algorithm_rate == 0.5e9
    assert result.single.bus_rate == pytest.approx(factor * 0.5e9)


def test_a_window_is_divided_by_its_all_reduces() -> None:
    made = replace(size_result(1_000_000), iterations_per_window=4)
    result = summarize(replace(made, window_seconds=((8e-3,) * 6, (4e-3,) * 6)), 2)
    assert result.window is not None
    assert result.window.seconds.center == 2e-3
    assert result.best is result.window


def test_one_rank_alone_has_no_bus_bandwidth() -> None:
    record = bandwidth_record(sizes(ranks=1), ranks=1)
    assert all(each.best is None or each.best.bus_rate is None for each in measure_sizes(record))
    assert figures(record) == {}
    assert answer(record).startswith("One rank alone sends nothing")


def test_a_median_has_its_exact_interval_from_six_values_on() -> None:
    found = median_interval([float(value) for value in range(1, 21)])
    assert (found.low, found.center, found.high) == (6.0, 10.5, 15.0)
    assert median_interval([1.0] * 5).ends is None
    assert median_interval([1.0] * 6).ends == (1.0, 1.0)


def test_the_line_of_a_clean_link() -> None:
    fit = fit_sizes(measure_sizes(bandwidth_record(sizes(alpha=50e-6, rate=2e9))))
    assert isinstance(fit, Fit)
    assert fit.alpha_seconds == pytest.approx(50e-6, rel=0.05)
    assert fit.bytes_per_second == pytest.approx(2e9, rel=0.05)
    assert fit.half_bytes == pytest.approx(100e3, rel=0.1)
    assert fit.is_one_line
    assert fit.predict_seconds(2e9) == pytest.approx(1.0, rel=0.05)


def test_one_disturbed_size_does_not_tilt_the_line() -> None:
    points = [Point(4**power, 1e-4 + 4**power / 1e9) for power in range(5, 20)]
    disturbed = fit_line([*points[:-1], Point(points[-1].nbytes, 5 * points[-1].seconds)])
    assert isinstance(disturbed, Fit)
    assert disturbed.bytes_per_second == pytest.approx(1e9, rel=0.2)
    assert disturbed.worst_bytes == points[-1].nbytes
    assert not disturbed.is_one_line


def test_the_bandwidth_is_that_of_the_largest_sizes() -> None:
    """A burst that a shaped link lets through at once must not count as its rate."""
    times = {4**power: 1e-4 + max(0, 4**power - 2**20) / 1e8 for power in range(5, 15)}
    fit = fit_line([Point(nbytes, seconds) for nbytes, seconds in times.items()])
    assert isinstance(fit, Fit)
    assert fit.bytes_per_second == pytest.approx(1e8, rel=0.01)


@pytest.mark.parametrize(
    ("points", "reason"),
    [
        ([], "no size up to 4096 bytes"),
        ([Point(2**20, 1.0), Point(2**21, 2.0), Point(2**22, 3.0)], "no size up to 4096 bytes"),
        ([Point(1024, 1.0), Point(1024, 2.0), Point(4096, 1.0)], "fewer than 3 sizes"),
        ([Point(1024, 3.0), Point(4096, 2.0), Point(8192, 1.0)], "does not grow"),
    ],
)
def test_no_line_without_points_for_it(points: list[Point], reason: str) -> None:
    fit = fit_line(points)
    assert isinstance(fit, Unfit)
    assert reason in fit.reason


def test_a_wrong_sum_counts_nowhere_and_is_told_before_any_other_cause() -> None:
    record = gpu_record()
    wrong = ended(2**26, "invalid", "CORRUPT: 5 elements are wrong")
    counted = replace(size_result(2**27, rate=1e3), wrong_after=2)
    kept = tuple(each for each in record.sizes if each.nbytes != 2**26)
    clean, spoiled = replace(record, sizes=kept), replace(record, sizes=(*kept, wrong, counted))
    assert kinds(judge(spoiled))["link_rate"] == kinds(judge(clean))["link_rate"]
    assert fit_sizes(measure_sizes(spoiled)) == fit_sizes(measure_sizes(clean))
    assert "All-reduces return wrong sums at 2 of 15 sizes." in answer(spoiled)
    other = field_report()
    assert "talk over network sockets" in answer(other)
    first = replace(other.sizes[0], status="invalid", reason="CORRUPT")
    told_now = answer(replace(other, sizes=(first, *other.sizes[1:])))
    assert "return wrong sums at 1 of 5 sizes" in told_now
    assert "talk over network sockets" not in told_now


def test_what_ended_a_run_is_told_at_the_end() -> None:
    record = golden_record()
    assert answer(record).endswith(
        "Rank 1 was killed by SIGKILL during the all-reduce of 1073741824 bytes."
    )
    assert answer(replace(record, culprit=None)).endswith("The run was not finished.")
    nothing = replace(record, sizes=())
    assert answer(nothing).startswith("No all-reduce of 2 ranks over nccl on one machine could be")
    for text in (rendered(nothing), print_table(nothing)):
        assert "killed by SIGKILL" in text


def test_the_figure_marks_what_is_corrupt() -> None:
    svg = told(golden_record())[0].draw_all()[FIGURE_NAME]
    for text in (b"CORRUPT", b"expected", b"one at a time", b"back to back", b"fitted", b">10 MB<"):
        assert text in svg
    plain = told(bandwidth_record())[0].draw_all()[FIGURE_NAME]
    assert b"expected" not in plain
    assert b"CORRUPT" not in plain


seconds = st.floats(0, 1e4) | st.just(1e-9)
by_ranks = st.lists(st.lists(seconds, max_size=7).map(tuple), max_size=3).map(tuple)
any_size = st.builds(
    SizeResult,
    nbytes=st.integers(0, 2**34),
    purpose=st.sampled_from(["sweep", "all gradients"]),
    status=st.sampled_from(["done", "done", "skipped", "failed", "hung", "invalid"]),
    reason=st.sampled_from(["", "CORRUPT: 3 elements are wrong"]),
    latency_seconds=by_ranks,
    window_seconds=by_ranks,
    iterations_per_window=st.integers(0, 20),
    wrong_before=st.sampled_from([None, 0, 4]),
    wrong_after=st.sampled_from([None, 0, 4]),
)


@settings(max_examples=80, deadline=None)
@given(st.lists(any_size, max_size=12), st.integers(1, 3), st.sampled_from(["gloo", "nccl"]))
def test_whatever_was_measured_no_number_is_nonsense(
    measured: list[SizeResult], ranks: int, backend: str
) -> None:
    where = gpu_machine() if backend == "nccl" else None
    record = bandwidth_record(measured, ranks=ranks, backend=backend, where=where)
    shown = print_table(record)
    assert not re.search(r"\b(nan|inf|None(?! of the))\b", rendered(record) + shown)
    corrupt = [line for line in shown.split("\n") if "| CORRUPT |" in line]
    assert len(corrupt) == sum(each.is_corrupt for each in measure_sizes(record))
    for line in corrupt:
        assert not re.search(r"\d", line.split("CORRUPT")[1])
