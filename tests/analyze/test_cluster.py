"""Does the simulation keep to what must hold of every cluster, and know when it is wrong?"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnose.analyze.links import LINK_NAMES, MEASURED, Cluster, KnownLink, find_cluster
from diagnose.analyze.scaling.cluster import (
    Job,
    Prediction,
    SimulationRefused,
    expose,
    fit_buckets,
    measured_cluster,
    read_job,
    refuse_error,
    ring_seconds,
    simulate,
    simulate_record,
    tree_seconds,
)
from diagnose.analyze.scaling.ledger import build_ledger
from diagnose.records.ranks import ScalingRecord
from diagnose.render.scaling import render_scale
from tests.support.records.experiments import BATCH
from tests.support.records.scaling import Losses, scaling_record

seconds = st.floats(1e-6, 10.0)
rates = st.floats(1e6, 1e13)
hops = st.floats(0.0, 1e-2)
buckets = st.lists(st.integers(0, 10**9), min_size=1, max_size=8).map(tuple)
jobs = st.builds(Job, seconds, st.floats(0.0, 10.0), st.floats(0.0, 10.0), buckets)


def known(hop_seconds: float, bytes_per_second: float) -> KnownLink:
    return KnownLink("x", bytes_per_second, hop_seconds, "test")


wires = st.builds(known, hops, rates)
# A host is 1 rank, a usual server, or all ranks whatever their number.
clusters = st.builds(
    lambda inside, between, per_host, sharing: Cluster(
        inside, per_host, between if per_host else None, sharing
    ),
    wires,
    wires,
    st.sampled_from([None, 1, 4, 8]),
    st.sampled_from([1, 4]),
)


def at_most(first: float, second: float) -> bool:
    """Up to the rounding of a few additions."""
    return first <= second * (1 + 1e-9) + 1e-12


@given(jobs, st.lists(st.integers(1, 4096), min_size=2, max_size=6), clusters)
def test_more_ranks_never_scale_better(job: Job, ranks: list[int], cluster: Cluster) -> None:
    found = [simulate(job, count, cluster) for count in sorted(ranks)]
    assert all(at_most(a.step_seconds, b.step_seconds) for a, b in pairwise(found))
    assert all(0 < each.efficiency <= 1 for each in found)
    assert all(at_most(each.exposed_seconds, each.transfer_seconds) for each in found)


@given(jobs, st.integers(2, 4096), clusters, st.floats(1.0, 1e3))
def test_a_faster_link_never_scales_worse(
    job: Job, ranks: int, cluster: Cluster, factor: float
) -> None:
    def faster(link: KnownLink | None) -> Any:
        return link and replace(link, bytes_per_second=link.bytes_per_second * factor)

    better = replace(cluster, inside=faster(cluster.inside), between=faster(cluster.between))
    before, after = simulate(job, ranks, cluster), simulate(job, ranks, better)
    assert at_most(after.step_seconds, before.step_seconds)


@given(jobs, st.integers(2, 4096))
def test_a_link_without_cost_leaves_the_step_and_its_contention(job: Job, ranks: int) -> None:
    found = simulate(job, ranks, Cluster(known(0.0, math.inf)))
    assert found.step_seconds == pytest.approx(job.alone_seconds + job.contention_seconds)


@given(st.integers(2, 64), hops, rates, st.integers(1, 10**9))
def test_a_measured_line_gives_itself_back(
    ranks: int, alpha: float, rate: float, nbytes: int
) -> None:
    wire = measured_cluster(alpha, rate, ranks).inside
    assert ring_seconds(nbytes, ranks, wire) == pytest.approx(alpha + nbytes / rate)


def test_ring_and_tree_are_those_of_the_textbook() -> None:
    wire = known(1e-6, 1e9)
    assert ring_seconds(1e6, 4, wire) == pytest.approx(6e-6 + 1.5e-3)
    assert tree_seconds(1e6, 8, wire) == pytest.approx(6e-6 + 2e-3)
    assert tree_seconds(1e6, 9, wire) == pytest.approx(8e-6 + 2e-3)


def test_buckets_hide_behind_the_backward_pass() -> None:
    job = Job(1.0, 0.0, 0.4, (100, 100, 200))
    # Ready at 0.1, 0.2 and 0.4 s.
    assert expose([0.1, 0.1, 0.1], job) == pytest.approx(0.1)
    assert expose([0.3, 0.3, 0.1], job) == pytest.approx(0.4)
    assert expose([0.0, 0.0, 0.0], job) == 0


def test_hosts_exchange_shards_over_the_network() -> None:
    link = find_cluster("pcie4")
    job = Job(1.0, 0.0, 0.0, (8_000_000,))
    found = simulate(job, 16, link)
    assert found.hosts == 2
    assert link.between is not None
    inside = ring_seconds(8e6, 8, link.inside)
    # One adapter for eight ranks: the shards together are the whole again.
    shard = known(link.between.hop_seconds, link.between.bytes_per_second / 8)
    assert found.exposed_seconds == pytest.approx(inside + ring_seconds(1e6, 2, shard))
    assert found.algorithms == ("ring inside, ring between hosts",)


@pytest.mark.parametrize("ranks", [0, -1])
def test_no_ranks_are_refused(ranks: int) -> None:
    with pytest.raises(ValueError, match="no number of ranks"):
        simulate(Job(1.0, 0.0, 0.1, (1,)), ranks, find_cluster("nvlink3"))


def test_buckets_are_fitted_without_small_sizes() -> None:
    line = [(10_000_000, 0.011), (20_000_000, 0.021), (40_000_000, 0.041)]
    assert list(fit_buckets(line)) == pytest.approx([1e-3, 1e9])
    assert list(fit_buckets(line[:1])) == pytest.approx([0.0, 10_000_000 / 0.011])
    # Larger and faster is no line: the largest size alone sets the rate.
    falling = [(10_000_000, 0.02), (20_000_000, 0.01)]
    assert list(fit_buckets(falling)) == pytest.approx([0.0, 2e9])


def believable() -> ScalingRecord:
    """84 ms of buckets at 1 GB/s, of which a backward pass of 60 ms hides all but 40.5 ms."""
    return scaling_record(Losses(communication=0.0405))


def test_the_job_is_read_from_the_ledger() -> None:
    record = scaling_record(noise=0.0)
    ledger = build_ledger(record)
    assert ledger is not None
    job = read_job(record, ledger)
    assert job.alone_seconds == pytest.approx(0.130)
    # Contention of computing and input, and the rest.
    assert job.contention_seconds == pytest.approx(0.015 + 0.005 + 0.002)
    assert job.backward_seconds == 0.060
    helped = scaling_record(Losses(compute=-0.05), noise=0.0)
    ledger = build_ledger(helped)
    assert ledger is not None
    assert read_job(helped, ledger).contention_seconds == 0


def test_the_record_is_extended_to_more_ranks() -> None:
    found = simulate_record(believable(), [2, 8, 512], MEASURED)
    efficiencies = [each.efficiency for each in found.predictions]
    assert efficiencies == sorted(efficiencies, reverse=True)
    text = render_scale(found)
    step = found.predictions[0].step_seconds
    assert f"| {2 * BATCH / step:.1f} |" in text
    assert "Self-check: for the 2 ranks at hand" in text
    assert "a simulation, not a measurement" in text


@pytest.mark.parametrize("name", LINK_NAMES)
def test_every_link_can_be_asked_for(name: str) -> None:
    assert "| 64 |" in render_scale(simulate_record(believable(), [64], name))


def test_a_model_that_misses_the_ranks_at_hand_is_refused() -> None:
    # The same buckets, but the exchange took 200 ms: something that the model does not know.
    slow = scaling_record(Losses(communication=0.2))
    with pytest.raises(SimulationRefused, match=r"for the 2 ranks at hand it says .* measured"):
        simulate_record(slow, [8], "nvlink4")


def test_a_quarter_is_the_largest_error() -> None:
    within, beyond = (Prediction(2, None, (), 0.1, 0.1, step, 0.5) for step in (1.24, 1.26))
    refuse_error(within, 1.0)
    with pytest.raises(SimulationRefused, match=r"\+26 % where 25 % is allowed"):
        refuse_error(beyond, 1.0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"series": ()}, "no ledger to extend"),
        ({"curve": ()}, "no measured all-reduce"),
        ({"backward_seconds": ()}, "no backward pass or no buckets"),
        ({"bucket_bytes": ()}, "no backward pass or no buckets"),
    ],
)
def test_a_record_without_its_parts_is_refused(change: dict[str, object], words: str) -> None:
    with pytest.raises(SimulationRefused, match=words):
        simulate_record(replace(believable(), **change), [8], "nvlink4")  # type: ignore[arg-type]
