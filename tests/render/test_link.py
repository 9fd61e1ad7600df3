"""Are the numbers of the interconnect right, is the right thing blamed, is nothing wrong shown?"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diagnose.analyze import derive
from diagnose.analyze.line_fit import Fit, Point, Unfit, fit_line
from diagnose.analyze.link.bandwidth import fit_record, measure_sizes, median_interval, summarise
from diagnose.analyze.link.verdict import judge
from diagnose.records import codec
from diagnose.records.header import Fact
from diagnose.records.ranks import BandwidthRecord, Culprit, SizeResult
from diagnose.render import seal
from diagnose.render.link.figure import bandwidth_figures
from diagnose.render.link.report import (
    answer,
    bandwidth_section,
    figure_names,
    print_table,
    render_bandwidth,
)
from tests.support.records.link import (
    bandwidth_record,
    ended,
    field_report,
    gpu_machine,
    gpu_record,
    kinds,
    rank,
    size_result,
    sizes,
    trial,
)

GOLDEN = Path(__file__).parent / "golden" / "bandwidth.md"


def golden_record() -> BandwidthRecord:
    """Everything at once: two cards, a wrong sum, a late rank, trials, a rank that died."""
    measured = [
        *sizes(alpha=20e-6, rate=9e9, late=1),
        ended(1_000_000, "invalid", "CORRUPT: 3 elements are wrong after timing"),
        ended(2**30, "failed", "rank 1 ran out of memory"),
    ]
    trials = [
        trial("as it is", 9e9),
        trial("NCCL_P2P_DISABLE=1", 18e9),
        trial("NCCL_SHM_DISABLE=1", None, "hung", "no answer within 10 s"),
        trial("NCCL_IB_DISABLE=1", None, "skipped", "there is one machine"),
    ]
    environment = {"NCCL_DEBUG": "WARN"}
    record = bandwidth_record(
        measured,
        backend="nccl",
        where=gpu_machine("PHB", environment=environment),
        surroundings={"nccl.conf": Fact("NCCL_P2P_LEVEL=SYS"), "interface": Fact("eth0")},
        trials=trials,
    )
    culprit = Culprit(1, "was killed by SIGKILL", "all-reduce of 1073741824 bytes")
    return replace(record, culprit=culprit, complete=False)


def by_rank(*times: Sequence[float]) -> SizeResult:
    made = size_result(1_000_000)
    return replace(made, latency_seconds=tuple(map(tuple, times)), window_seconds=())


def test_the_golden_report() -> None:
    text = render_bandwidth(golden_record())
    if os.environ.get("UPDATE_GOLDEN") == "1":
        GOLDEN.write_text(text, encoding="utf-8")
    assert text == GOLDEN.read_text(encoding="utf-8")


def test_the_time_is_the_slowest_ranks_then_the_median() -> None:
    result = summarise(by_rank([1e-3, 4e-3, 1e-3], [2e-3, 1e-3, 9e-3]), world_size=2)
    assert result.single is not None
    assert result.single.seconds.center == 4e-3
    assert result.single.mean_seconds == pytest.approx(5e-3)
    assert result.single.seconds.low is None


@pytest.mark.parametrize(("ranks", "factor"), [(2, 1.0), (4, 1.5), (8, 1.75)])
def test_bandwidths_of_one_size(ranks: int, factor: float) -> None:
    result = summarise(by_rank(*[[1e-3] * 6] * ranks), ranks).single
    assert result is not None
    assert result.algorithm_rate == 1e9
    assert result.bus_rate == pytest.approx(factor * 1e9)
    assert result.doubled_rate == 2e9


def test_a_window_is_divided_by_its_all_reduces() -> None:
    made = replace(size_result(1_000_000), iterations_per_window=4)
    made = replace(made, window_seconds=((8e-3,) * 6, (4e-3,) * 6))
    result = summarise(made, 2)
    assert result.window is not None
    assert result.window.seconds.center == 2e-3
    assert result.best is result.window


def test_one_rank_alone_has_no_bus_bandwidth() -> None:
    record = bandwidth_record(sizes(ranks=1), ranks=1)
    assert all(each.best is None or each.best.bus_rate is None for each in measure_sizes(record))
    assert figure_names(record) == ()
    assert bandwidth_figures(record) == {}
    assert answer(record).startswith("One rank alone sends nothing")
    assert "inf" not in render_bandwidth(record).split()


@pytest.mark.parametrize(
    "broken",
    [
        by_rank(),
        by_rank([], []),
        by_rank([0.0, 0.0], [0.0, 0.0]),
        by_rank([1e-12], [1e-12]),
        replace(size_result(0), window_seconds=()),
        replace(by_rank(), window_seconds=((1.0,), (1.0,)), iterations_per_window=0),
    ],
)
def test_times_that_cannot_be_are_no_measurement(broken: SizeResult) -> None:
    result = summarise(broken, 2)
    assert result.best is None
    assert result.reason == "no usable time was recorded"


@given(st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=60))
def test_the_median_lies_in_its_interval(values: list[float]) -> None:
    found = median_interval(values)
    assert (found.low is None) == (len(values) < 6)
    if found.low is not None and found.high is not None:
        assert min(values) <= found.low <= found.center <= found.high <= max(values)


def test_the_interval_of_a_median_of_twenty() -> None:
    found = median_interval([float(value) for value in range(1, 21)])
    assert (found.low, found.center, found.high) == (6.0, 10.5, 15.0)


def test_the_line_of_a_clean_link() -> None:
    fit = fit_record(bandwidth_record(sizes(alpha=50e-6, rate=2e9)))
    assert isinstance(fit, Fit)
    assert fit.alpha_seconds == pytest.approx(50e-6, rel=0.05)
    assert fit.bytes_per_second == pytest.approx(2e9, rel=0.05)
    assert fit.half_bytes == pytest.approx(100e3, rel=0.1)
    assert fit.is_one_line
    assert fit.predict_seconds(2e9) == pytest.approx(1.0, rel=0.05)


def test_one_disturbed_size_does_not_tilt_the_line() -> None:
    points = [Point(4**power, 1e-4 + 4**power / 1e9) for power in range(5, 20)]
    clean = fit_line(points)
    disturbed = fit_line([*points[:-1], Point(points[-1].nbytes, 5 * points[-1].seconds)])
    assert isinstance(clean, Fit)
    assert isinstance(disturbed, Fit)
    assert disturbed.bytes_per_second == pytest.approx(clean.bytes_per_second, rel=0.2)
    assert disturbed.worst_bytes == points[-1].nbytes
    assert not disturbed.is_one_line


def test_the_bandwidth_is_that_of_the_largest_sizes() -> None:
    """A burst that a shaped link lets through at once must not count as its rate."""
    bytes_through_at_once = 2**20
    points = [
        Point(4**power, 1e-4 + max(0, 4**power - bytes_through_at_once) / 1e8)
        for power in range(5, 15)
    ]
    fit = fit_line(points)
    assert isinstance(fit, Fit)
    assert fit.bytes_per_second == pytest.approx(1e8, rel=0.01)


def test_a_link_with_two_protocols_is_told_in_pieces() -> None:
    slow = [size_result(4**power, alpha=1e-4, rate=1e8) for power in range(5, 11)]
    fast = [size_result(4**power, alpha=1e-2, rate=5e9) for power in range(12, 16)]
    record = bandwidth_record([*slow, *fast])
    fit = fit_record(record)
    assert isinstance(fit, Fit)
    assert not fit.is_one_line
    assert fit.pieces[0].first_bytes == 1024
    assert fit.pieces[-1].last_bytes == 4**15
    assert [piece.last_bytes for piece in fit.pieces[:-1]] == [
        piece.first_bytes for piece in fit.pieces[1:]
    ]
    assert "not one line" in kinds(judge(record))["not_one_line"].sentence
    assert "| piece | α ms | B GB/s |" in render_bandwidth(record)
    assert "| piece |" not in render_bandwidth(bandwidth_record())


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


def test_a_wrong_sum_shows_corrupt_and_counts_nowhere() -> None:
    wrong = ended(2**26, "invalid", "CORRUPT: 5 elements are wrong")
    counted = replace(size_result(2**27, rate=1e3), wrong_after=2)
    record = gpu_record()
    kept = [each for each in record.sizes if each.nbytes != 2**26]
    spoiled = replace(record, sizes=(*kept, wrong, counted))
    found = judge(spoiled)
    assert kinds(found)["corrupt"].sentence.startswith("All-reduces return wrong sums at 2 of 15")
    clean = kinds(judge(replace(record, sizes=tuple(kept))))
    assert kinds(found)["link_rate"] == clean["link_rate"]
    assert fit_record(spoiled) == fit_record(replace(record, sizes=tuple(kept)))
    assert "return wrong sums" in answer(spoiled)


def test_a_wrong_sum_is_told_before_any_other_cause() -> None:
    record = field_report()
    wrong = replace(record.sizes[0], status="invalid", reason="CORRUPT")
    assert "talk over network sockets" in answer(record)
    told = answer(replace(record, sizes=(wrong, *record.sizes[1:])))
    assert "All-reduces return wrong sums at 1 of 5 sizes." in told
    assert "talk over network sockets" not in told


def test_what_ended_a_run_is_told_at_the_end() -> None:
    record = golden_record()
    assert answer(record).endswith(
        "Rank 1 was killed by SIGKILL during the all-reduce of 1073741824 bytes."
    )
    stopped = replace(record, culprit=None)
    assert answer(stopped).endswith("The run was not finished.")
    nothing = replace(record, sizes=())
    assert answer(nothing).startswith("No all-reduce of 2 ranks over nccl on one machine could be")
    for tell in (render_bandwidth, bandwidth_section, print_table):
        assert "killed by SIGKILL" in tell(nothing)


def test_the_answer_comes_first_everywhere() -> None:
    record = bandwidth_record()
    assert answer(record).startswith("2 ranks over gloo on one machine exchange 0.49")
    assert render_bandwidth(record).split("\n\n")[1] == f"**{answer(record)}**"
    assert bandwidth_section(record).split("\n\n")[:2] == [
        "## Interconnect",
        f"**{answer(record)}**",
    ]
    assert print_table(record).split("\n")[0] == answer(record)


def test_a_run_on_a_fake_is_marked() -> None:
    text = render_bandwidth(
        replace(
            bandwidth_record(),
            header=replace(bandwidth_record().header, source="fake device", effort="smoke"),
        )
    )
    assert "**This is no result: it was measured on a fake device" in text


def test_sizes_stand_in_order_with_what_they_are_for() -> None:
    lines = print_table(bandwidth_record()).split("\n")[2:]
    sizes_told = [line.split("  ")[0] for line in lines[1:15]]
    assert sizes_told[0] == "1.02 kB"
    assert sizes_told.index("4.00 MB") < sizes_told.index("4.19 MB")
    assert sizes_told[-1] == "515 MB"
    assert "4 MB of the field report" in lines[7]


def test_text_from_outside_cannot_escape() -> None:
    evil = "<script>x</script> | [y](z) @team \x1b[31m\u202e"
    record = golden_record()
    record = replace(
        record,
        backend=evil,
        sizes=(*record.sizes, ended(7, "failed", evil), size_result(8, purpose=evil)),
        surroundings={evil: Fact(evil), "interface": Fact(evil)},
        culprit=Culprit(0, evil, evil),
        trials=(trial("as it is"), trial("A=1", None, "failed", evil)),
        ranks=(replace(rank(0), device_name=evil), replace(rank(1), torch_version=evil)),
    )
    text = render_bandwidth(record) + bandwidth_section(record)
    assert not re.search(r"<[a-zA-Z/!]", text)
    assert "@team" not in text
    assert not re.search(r"[\x1b\u202e]", text + print_table(record))


def test_a_record_renders_alike_after_its_way_through_the_file() -> None:
    record = golden_record()
    read_back = codec.from_dict(BandwidthRecord, json.loads(codec.dumps(record)))
    for tell in (render_bandwidth, bandwidth_section, print_table):
        assert tell(read_back) == tell(record)
    assert bandwidth_figures(read_back) == bandwidth_figures(record)


def test_the_figure_is_sealed_and_marks_what_is_corrupt() -> None:
    record = golden_record()
    (name,) = figure_names(record)
    svg = bandwidth_figures(record)[name]
    assert seal.find_fault(svg, derive.fingerprint(record)) == ""
    for text in (b"CORRUPT", b"expected", b"one at a time", b"back to back", b"fitted"):
        assert text in svg
    plain = bandwidth_figures(bandwidth_record())[name]
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
    text = render_bandwidth(record)
    for told in (text, bandwidth_section(record), print_table(record)):
        assert not re.search(r"\b(nan|inf|None(?! of the))\b", told)
    corrupt = [line for line in text.split("\n") if "| CORRUPT |" in line]
    wrong = [each for each in measure_sizes(record) if each.is_corrupt]
    assert len(corrupt) == 2 * len(wrong)
    for line in corrupt:
        after = line.split("CORRUPT")[1]
        assert not re.search(r"\d", after)
    for row in print_table(record).split("\n"):
        if re.search(r"(sweep|all gradients) +CORRUPT", row):
            assert row.endswith("CORRUPT")
