"""Does the report on scaling find the losses that a record holds, and nothing else?"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnose.analyze.findings import Finding
from diagnose.analyze.scaling import ledger as scaling
from diagnose.analyze.scaling.cadence import cadence_share
from diagnose.analyze.scaling.findings import judge_scaling
from diagnose.analyze.scaling.ledger import Ledger, build_ledger, find_obstacle
from diagnose.records.ranks import SERIES_NAMES, Culprit, ScalingRecord, Series
from diagnose.render.scaling import FIGURE_NAME, answer, figures
from diagnose.render.waterfall import UNEXPLAINED
from tests.support.records.experiments import compare
from tests.support.records.scaling import (
    BUCKETS,
    Losses,
    all_reduces,
    scaling_record,
)
from tests.support.rendered import rendered, told


def ledger_of(record: ScalingRecord) -> Ledger:
    ledger = build_ledger(record)
    assert ledger is not None
    return ledger


def losses_of(record: ScalingRecord) -> dict[str, float]:
    return {each.name: each.cost.seconds.center for each in ledger_of(record).losses}


def found(record: ScalingRecord, kind: str) -> Finding:
    (matching,) = (each for each in judge_scaling(record) if each.kind == f"scaling_{kind}")
    return matching


# --- the ledger ---


def test_every_loss_is_found_again() -> None:
    record = scaling_record(Losses(communication=0.09), noise=0.0)
    expected = {
        scaling.COMPUTE: 0.015,
        scaling.INPUT: 0.005,
        scaling.WAITING: 0.0,
        # The buckets take 4 ms and 80 MB at 1 GB/s; what exceeds that is the shortfall.
        scaling.TRANSFER: 0.084,
        scaling.SHORTFALL: 0.006,
        scaling.REST: 0.002,
    }
    assert losses_of(record) == pytest.approx(expected, abs=1e-12)


def test_a_late_rank_is_waited_for_and_not_called_communication() -> None:
    found_losses = losses_of(scaling_record(Losses(late=0.02), link=None, noise=0.0))
    # Half of it slows the mean of two ranks down, the other half is waited for.
    assert found_losses[scaling.COMPUTE] == pytest.approx(0.015 + 0.01)
    assert found_losses[scaling.WAITING] == pytest.approx(0.01)
    # Without a curve communication is one line.
    assert found_losses[scaling.COMMUNICATION] == pytest.approx(0.06)
    assert scaling.TRANSFER not in found_losses


def test_a_transfer_is_no_longer_than_what_is_exposed() -> None:
    found_losses = losses_of(scaling_record(Losses(communication=0.03), noise=0.0))
    assert found_losses[scaling.TRANSFER] == pytest.approx(0.03)
    assert found_losses[scaling.SHORTFALL] == pytest.approx(0.0, abs=1e-12)


slots = st.lists(st.floats(1e-3, 10.0), min_size=7, max_size=7)


@st.composite
def any_series(draw: st.DrawFn) -> tuple[Series, ...]:
    ranks = draw(st.integers(2, 4))
    return tuple(
        Series(
            name,
            draw(st.integers(1, 5)),
            tuple(
                tuple(draw(slots)) if rank == 0 or not name.startswith("alone") else ()
                for rank in range(ranks)
            ),
        )
        for name in SERIES_NAMES
    )


@given(any_series())
def test_any_times_add_up_in_every_block(series: tuple[Series, ...]) -> None:
    record = replace(scaling_record(ranks=len(series[0].slot_seconds)), series=series)
    ledger = ledger_of(record)
    assert ledger.total.cost.blocks == 7
    sums = map(math.fsum, zip(*(each.blocks for each in ledger.losses), strict=True))
    assert list(sums) == pytest.approx(ledger.total.blocks, abs=1e-9)
    for each in ledger.losses:
        if each.name in (scaling.WAITING, scaling.SHORTFALL):
            assert min(each.blocks) >= 0


def with_last(record: ScalingRecord, **change: Any) -> ScalingRecord:
    """With another last series."""
    return replace(record, series=(*record.series[:-1], replace(record.series[-1], **change)))


def test_only_blocks_that_every_series_finished_count() -> None:
    record = scaling_record(blocks=10)
    first, second = record.series[-1].slot_seconds
    shorter = with_last(record, slot_seconds=(first, second[:8]))
    assert ledger_of(shorter).total.cost.blocks == 8


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (replace(scaling_record(), series=()), "'alone full input' was not measured"),
        (scaling_record(ranks=1), "two are needed"),
        (with_last(scaling_record(), steps_per_slot=0), "does not have the times of every rank"),
        (with_last(scaling_record(), slot_seconds=((1.0,), ())), "has no finished block"),
        (with_last(scaling_record(), slot_seconds=((1.0,), (0.0,))), "took no time"),
    ],
)
def test_a_missing_part_is_named(record: ScalingRecord, words: str) -> None:
    assert words in find_obstacle(record)
    assert build_ledger(record) is None
    assert figures(record) == {}
    assert words in answer(record)
    assert "There is no ledger" in rendered(record)


def test_what_the_buckets_take() -> None:
    record = scaling_record()
    # The slowest rank of each all-reduce, once for every bucket.
    assert scaling.transfer_seconds(record).value == pytest.approx(0.084)
    corrupt = replace(all_reduces(BUCKETS[0], 0.5), status="invalid", reason="CORRUPT")
    spoiled = replace(record, curve=(corrupt, *record.curve[1:]))
    assert scaling.transfer_seconds(spoiled).value is None


# --- what is concluded ---


def test_efficiency_and_its_warning() -> None:
    slow, fine = Losses(), Losses(communication=0.005)
    assert ledger_of(scaling_record(slow, noise=0.0)).efficiency.center == pytest.approx(
        0.130 / 0.212
    )
    assert found(scaling_record(slow), "efficiency").verdict == "cause"
    assert found(scaling_record(fine), "efficiency").verdict == "excluded"
    assert found(scaling_record(slow, blocks=4), "efficiency").verdict == "cannot tell"
    worst = scaling_record(Losses(communication=0.6))
    assert found(worst, "efficiency").severity == "critical"
    assert "less than one alone" in answer(worst)


def test_the_share_of_communication_leaves_the_optimizer_out() -> None:
    between = found(scaling_record(), "communication_share")
    # 60 of 212 ms; the optimizer's 22 ms would have made it 39 %.
    assert between.verdict == "excluded"
    assert "would say" in between.evidence
    assert "38." in between.evidence
    above = found(scaling_record(Losses(communication=0.2)), "communication_share")
    assert above.verdict == "cause"


def test_a_slow_rank_is_named() -> None:
    late = found(scaling_record(Losses(late=0.03), ranks=4), "straggler")
    assert late.verdict == "cause"
    assert late.sentence.startswith("Rank 3 on host 0 is slower")
    assert found(scaling_record(), "straggler").verdict == "excluded"


LOSSES = [
    ("compute_contention", Losses(compute=0.2)),
    ("input_contention", Losses(input=0.2)),
    ("waiting_for_the_slowest_rank", Losses(late=0.2)),
    ("transfer", Losses(communication=0.09)),  # its buckets take 84 ms of 90
    ("bandwidth_shortfall", Losses(communication=0.4)),  # and of 400
    ("rest", Losses(rest=0.2)),
    ("straggler", Losses(late=0.2)),
    ("efficiency", Losses()),
    ("communication_share", Losses(communication=0.4)),
]


@pytest.mark.parametrize(("kind", "losses"), LOSSES)
def test_every_loss_can_be_accused_and_excluded(kind: str, losses: Losses) -> None:
    assert found(scaling_record(losses, ranks=4), kind).verdict == "cause"
    nothing = Losses(compute=0.0, input=0.0, communication=0.0, rest=0.0)
    healthy = scaling_record(nothing, noise=0.0, link=(1e-5, 1e12))
    assert {each.kind for each in judge_scaling(healthy)} == {
        f"scaling_{each}" for each, _ in LOSSES
    }
    assert found(healthy, kind).verdict == "excluded"


def test_the_answer_names_the_largest_loss_if_one_is_proven() -> None:
    assert "compute contention" in answer(scaling_record(Losses(compute=0.2, communication=0.001)))
    assert "4 times one rank" in answer(scaling_record(ranks=4))
    perfect = Losses(compute=0.0, input=0.0, communication=0.0, rest=0.0)
    assert "no single loss is proven" in answer(scaling_record(perfect, blocks=4))
    published = compare("accumulate_4", 1.4, form="as published")
    assert "no option is proven" in answer(scaling_record(comparisons=[published]))


def test_the_culprit_stands_in_the_answer() -> None:
    culprit = Culprit(1, "was killed by SIGKILL", "step 'together'")
    record = replace(scaling_record(), culprit=culprit, complete=False)
    assert answer(record).endswith("Rank 1 was killed by SIGKILL during step 'together'.")
    assert found(record, "ended").severity == "critical"
    early = replace(record, series=(), curve=(), comparisons=(), cadence=None, watts=())
    assert "Rank 1 was killed by SIGKILL" in rendered(early)


def test_the_share_of_evaluation_and_saving() -> None:
    record = scaling_record(noise=0.0)
    # 6 s and 2 s in every 500 steps of 212 ms.
    assert cadence_share(record, 500, 500).value == pytest.approx(8 / (500 * 0.212 + 8))
    assert cadence_share(record, 2000, 1000).value == pytest.approx(0.005 / (0.212 + 0.005))
    assert cadence_share(replace(record, cadence=None), 500, 500).value is None
    assert cadence_share(replace(record, series=()), 500, 500).value is None


# --- the report and its figure ---


def test_the_bars_of_the_figure_lead_to_the_last() -> None:
    record = scaling_record(Losses(rest=-0.01), noise=0.1)
    svg = told(record)[0].draw_all()[FIGURE_NAME]
    for name in ("one rank alone", scaling.TRANSFER, scaling.REST, UNEXPLAINED, "2 ranks together"):
        assert name in svg.decode()
    ledger = ledger_of(record)
    end = ledger.alone.center + sum(losses_of(record).values()) + ledger.unassigned_seconds
    assert end == pytest.approx(ledger.together.center)
