"""The search itself: exact for every limit, within its promise for every guess."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diagnose.measure.batch_size.agree import (
    Disagreement,
    combine,
    least_available,
    own_card,
)
from diagnose.measure.batch_size.plan import (
    MAX_CROPS,
    Patience,
    Wanted,
    choose_confirmation,
    choose_sweep,
    explain_stop,
    find_ceiling,
    guess,
    list_estimates,
    needed_seconds,
    plan_configurations,
)
from diagnose.measure.batch_size.search import (
    LARGEST_BATCH,
    explain_refusal,
    judge,
    probes_allowed,
    search,
)
from diagnose.measure.ranks.job.rendezvous import Place
from diagnose.measure.session import Refused
from diagnose.records.batch_size import (
    AS_IT_IS,
    UNDER_DDP,
    Probe,
    crops_factor,
    fit_memory,
    largest_fitting,
    smallest_failing,
)
from diagnose.records.header import Reading

UNKNOWN = Reading(None, "not measured here")
PATIENCE = Patience(5.0, search_seconds=20.0, sweep_seconds=9.0)
LIMITS = st.one_of(st.integers(1, 300), st.integers(1, 10**6))


def probe_made(
    batch: int,
    fits: bool = True,
    peak: float | None = None,
    free: float | None = None,
    step: float = 0.001,
    fresh: bool = False,
    seconds: float = 0.0,
) -> Probe:
    return Probe(
        batch,
        "fits" if fits else "out of memory",
        UNKNOWN if peak is None else Reading(peak),
        UNKNOWN if free is None else Reading(free),
        (step, 1.5 * step) if fits else (),
        "" if fits else "no memory",
        seconds=seconds,
        fresh=fresh,
    )


def device_with(limit: int) -> Callable[[int], Probe]:
    return lambda batch: probe_made(batch, batch <= limit)


@given(limit=LIMITS, first=st.none() | st.integers(0, 10**7))
@settings(max_examples=400, deadline=None)
def test_the_result_is_the_true_maximum_within_the_promise(limit: int, first: int | None) -> None:
    made = search(device_with(limit), guess=lambda seen: first)
    assert largest_fitting(made) == limit
    assert smallest_failing(made) == limit + 1
    assert len(made) <= 2 + 2 * math.log2(limit)


@given(limit=st.integers(1, 5000), guesses=st.lists(st.integers(-5, 10**6), min_size=1))
@settings(max_examples=200, deadline=None)
def test_a_guess_that_keeps_changing_its_mind_breaks_no_promise(
    limit: int, guesses: list[int]
) -> None:
    made = search(device_with(limit), guess=lambda seen: guesses[len(seen) % len(guesses)])
    assert largest_fitting(made) == limit
    assert len(made) <= 2 + 2 * math.log2(limit)


@pytest.mark.parametrize("limit", [6, 40, 1000, 65_537, 10**6])
def test_a_right_guess_needs_five_probes(limit: int) -> None:
    made = search(device_with(limit), guess=lambda seen: limit)
    assert [probe.batch for probe in made][-2:] == [limit, limit + 1]
    assert len(made) <= 5


def test_the_promise_is_the_logarithm_rounded_down() -> None:
    for batch in (*range(1, 2000), 2**31, 2**31 - 1, 10**6):
        assert probes_allowed(batch) == math.floor(2 + 2 * math.log2(batch))


def test_nothing_fits_attempts_end_early_and_a_ceiling_is_never_passed() -> None:
    assert [probe.batch for probe in search(device_with(0))] == [1]
    few = search(device_with(1000), attempts=5)
    assert len(few) == 5
    assert largest_fitting(few) < 1000
    made = search(device_with(1000), ceiling=lambda seen: 37)
    assert max(probe.batch for probe in made) == largest_fitting(made) == 37


def test_the_memory_line_and_the_guess_from_it() -> None:
    free = 1000.0
    made = [probe_made(b, peak=100 + 8 * b, free=free) for b in (1, 2, 6)]
    line = fit_memory(made)
    assert line is not None
    assert line.fixed_bytes == pytest.approx(100)
    assert line.bytes_per_sample == pytest.approx(8)
    assert guess(made, ()) == 100, "(0.9 * 1000 - 100) / 8"
    assert fit_memory(made[:1]) is None
    assert fit_memory([probe_made(b, peak=5.0) for b in (1, 2)]) is None, "it does not grow"


def test_before_there_is_a_line_the_rules_of_thumb_guess() -> None:
    estimates = list_estimates(8e9, 100_000_000, None, None)
    assert guess([probe_made(1, peak=10.0, free=1e3)], estimates) == 4
    assert guess([probe_made(1)], ()) is None
    narrow = [probe_made(b, peak=10.0 + b, free=20.0) for b in (1, 2)]
    assert guess(narrow, estimates) == 8, "the line says more than the rule"
    wide = [probe_made(b, peak=16.0 + b, free=20.0) for b in (1, 2, 3)]
    assert guess(wide, estimates) == 2, "the line is certain"


@pytest.mark.parametrize(
    ("gigabytes", "billions", "expected"),
    [
        *((4, 0.1, (1, 2)), (8, 0.1, (2, 4)), (12, 0.1, (4, 8)), (16, 0.1, (8, 16))),
        *((None, 0.5, (8, 16)), (None, 1, (4, 8)), (None, 7, (2, 4)), (None, 13, (1, 2))),
        *((80, 8, (2, 4)), (8, 0.5, (2, 4))),  # the smaller of both tables
    ],
)
def test_rules_by_memory_and_parameters(
    gigabytes: float | None, billions: float, expected: tuple[int, int]
) -> None:
    memory = None if gigabytes is None else gigabytes * 1e9
    begin = list_estimates(memory, int(billions * 1e9), None, None)[0]
    assert (begin.low, begin.high) == expected


def test_rules_by_max_crops() -> None:
    assert [crops_factor(n) for n in (1, 4, 5, 8, 9, 12, 13)] == [1, 1, 0.75, 0.75, 0.5, 0.5, 0.4]
    assert list_estimates(None, 1, 64, 13)[0].high == 25
    assert list_estimates(None, 1, 64, None)[0].high == 64
    assert list_estimates(4e9, 1, None, 13)[0].low == 1, "never less than one sample"
    tiled = list_estimates(80e9, 2_000_000_000, None, 12)
    assert [(rule.low, rule.high) for rule in tiled] == [(2, 4), (4, 8), (8, 16)]
    assert tiled[0].source == "2 billion parameters at max_crops 12"
    assert guess([probe_made(1)], tiled) == 4


def test_a_batch_that_takes_the_last_of_the_memory_does_not_fit() -> None:
    assert judge(probe_made(4, peak=90.0, free=100.0), ()).fits
    judged = judge(probe_made(4, peak=91e6, free=100e6), ())
    assert judged.status == "over the limit"
    assert "91.0 MB is over 90% of the 100.0 MB" in judged.reason


def test_a_batch_that_spills_does_not_fit() -> None:
    earlier = [probe_made(8, step=0.1)]
    assert judge(probe_made(16, step=0.29), earlier).fits
    judged = judge(probe_made(16, step=0.36), earlier)
    assert judged.status == "spills"
    assert "1.8 times what batch 8 leads to expect" in judged.reason
    assert judge(probe_made(16, step=0.009), [probe_made(8, step=0.001)]).fits, "too short to tell"


@pytest.mark.parametrize(
    ("probes", "ceiling"),
    [
        ([probe_made(1, False)], LARGEST_BATCH),
        ([probe_made(10, step=0.01)], 1000),
        ([probe_made(1, step=0.01), probe_made(10, step=1.0)], 100),
        ([probe_made(1), probe_made(10, step=0.01), probe_made(20, step=3.0)], 1000),
        ([probe_made(1, step=1.0), probe_made(4, step=4.0)], 4),  # it is slow enough already
        ([probe_made(1), probe_made(700, step=0.7), probe_made(800, False)], 1000),
        ([probe_made(1, step=9.0)], 2),  # one probe alone may have been disturbed
        ([probe_made(1, step=9.0), probe_made(2, step=0.1)], 20),
        ([probe_made(1, step=9.0), probe_made(2, step=9.0)], 2),
        # What is left of the search bounds a probe too, until the exact answer is near.
        ([probe_made(1, seconds=9.0), probe_made(4, step=0.4, seconds=9.0)], 400),
        ([probe_made(1, step=0.1, seconds=9.0), probe_made(4, step=0.4, seconds=10.0)], 4),
        ([probe_made(1), probe_made(4, step=0.04, seconds=21.0)], 4),
        ([probe_made(1), probe_made(4, step=0.04, seconds=21.0), probe_made(8, False)], 1000),
    ],
)
def test_time_bounds_the_search_and_lets_it_grow(probes: list[Probe], ceiling: int) -> None:
    assert find_ceiling(probes, PATIENCE) == ceiling


def test_a_fresh_process_confirms_or_searches_on() -> None:
    made = [probe_made(1, fresh=True), probe_made(2), probe_made(20), probe_made(21, False)]
    assert choose_confirmation(made) == 20
    confirmed = [*made, probe_made(20, fresh=True)]
    assert choose_confirmation(confirmed) == 21, "it was refused beside what others had left"
    assert choose_confirmation([*confirmed, probe_made(21, False, fresh=True)]) is None
    more = [*confirmed, probe_made(40, False), probe_made(21, fresh=True)]
    assert (largest_fitting(more), smallest_failing(more)) == (21, 40), "fresh ones decide"
    assert choose_confirmation(more) == 30
    assert choose_confirmation([*confirmed, probe_made(21, fresh=True)]) == 22
    others = [replace(each, status="failed") if not each.fits else each for each in confirmed]
    assert choose_confirmation(others) is None, "memory did not refuse it"
    refuted = [*made, probe_made(20, False, fresh=True)]
    assert choose_confirmation(refuted) == largest_fitting(refuted) == 2, "fresh ones decide"
    between = [*refuted, probe_made(2, fresh=True)]
    assert choose_confirmation(between) == 11
    between += [probe_made(11, fresh=True), probe_made(12, False, fresh=True)]
    assert choose_confirmation(between) is None
    assert choose_confirmation(made[:1]) is None, "a fresh process has tried it already"
    assert choose_confirmation([probe_made(1, False)]) is None


FAST, SLOW = probe_made(8, step=0.001), probe_made(8, step=1.0)
TOO_LONG = "a larger batch was not tried: its probe would take over 5 s"


@pytest.mark.parametrize(
    ("probes", "searched", "attempts", "reason"),
    [
        ([FAST, probe_made(9, False)], 2, 2, ""),  # exact anyway
        ([probe_made(1), FAST], 2, 2, "--max-attempts 2 was reached"),
        ([SLOW], 1, None, TOO_LONG),
        ([SLOW], 1, 9, TOO_LONG),  # not for its attempts
        ([SLOW, replace(SLOW, fresh=True)], 1, 2, TOO_LONG),  # confirming is no attempt
        (
            [replace(FAST, seconds=21.0)],
            1,
            9,
            "a larger batch was not tried: the search would take over 20 s; --full takes longer",
        ),
        (
            [FAST, probe_made(20), probe_made(21, False), probe_made(20, False, fresh=True)],
            3,
            None,
            "a fresh process could not confirm a larger batch that had fitted before",
        ),
    ],
)
def test_why_a_search_stopped(
    probes: list[Probe], searched: int, attempts: int | None, reason: str
) -> None:
    assert explain_stop(probes, searched, attempts, PATIENCE) == reason


def test_a_refusal_says_what_is_needed() -> None:
    refused = Probe(1, "out of memory", Reading(3e6), Reading(16e6), (), "tried 32 MB")
    assert explain_refusal(refused, "a smaller --size") == (
        "batch 1 does not fit: tried 32 MB; it had taken 3.0 MB of the 16.0 MB that were free and "
        "needs that allocation on top; use a smaller --size or a device with more memory"
    )
    broken = Probe(1, "failed", UNKNOWN, UNKNOWN, (), "KeyError: 'x'")
    assert explain_refusal(broken, "less") == "batch 1 does not fit: KeyError: 'x'"


@pytest.mark.parametrize(
    ("largest", "asked", "batches"),
    [
        (1, (), [1]),
        (8, (), [1, 2, 4, 8]),
        (11, (), [1, 2, 4, 8, 11]),
        (11, (16, 4, 1), [1, 4]),
        (3, (16,), [3]),
    ],
)
def test_the_sweep_ends_with_the_largest(
    largest: int, asked: tuple[int, ...], batches: list[int]
) -> None:
    assert choose_sweep([probe_made(1), probe_made(largest)], asked, 9.0) == batches


@given(
    largest=st.integers(2, 10**6), once=st.floats(1e-4, 1.0), each=st.floats(0, 1.0),
)  # fmt: skip
@settings(max_examples=200, deadline=None)
def test_a_sweep_of_long_steps_has_fewer_sizes(largest: int, once: float, each: float) -> None:
    made = [probe_made(b, step=once + each * b) for b in (1, largest)]
    batches = choose_sweep(made, (), 9.0)
    assert batches == sorted(set(batches))
    assert (batches[0], batches[-1]) == (1, largest)
    doubling = choose_sweep(made, (), math.inf)
    assert set(batches) <= set(doubling)
    in_time = needed_seconds(made, batches) <= 9.0
    assert in_time or len(batches) == 2
    if needed_seconds(made, doubling) <= 9.0:
        assert batches == doubling


def test_the_time_of_a_sweep_is_read_between_the_probes() -> None:
    made = [probe_made(1, step=0.1), probe_made(9, step=0.5), probe_made(9, step=0.9)]
    block = needed_seconds(made, [1, 5, 9]) / needed_seconds(made, [1])
    assert block == pytest.approx((0.1 + 0.3 + 0.5) / 0.1)
    assert needed_seconds(made[1:], [5]) == needed_seconds(made[1:], [9]), "nothing below"


def test_configurations_of_max_crops() -> None:
    knows: dict[str, object] = {"max_crops": 12}
    assert plan_configurations("w", {}, Wanted()) == [AS_IT_IS]
    assert plan_configurations("w", {}, Wanted(ddp=True)) == [AS_IT_IS, UNDER_DDP]
    assert plan_configurations("w", knows, Wanted(max_crops=(12, 13))) == [
        "max_crops 12",
        "max_crops 13",
    ]
    assert plan_configurations("w", knows, Wanted(start_from=12)) == [
        f"max_crops {cap}" for cap in MAX_CROPS if cap >= 12
    ]
    with pytest.raises(Refused, match="workload w has no max_crops"):
        plan_configurations("w", {}, Wanted(max_crops=(2,)))
    with pytest.raises(Refused, match="no max_crops is left"):
        plan_configurations("w", knows, Wanted(max_crops=(2,), start_from=4))


def test_what_holds_for_all_ranks() -> None:
    roomy = probe_made(4, peak=10.0, free=100.0, step=0.2)
    tight = probe_made(4, peak=50.0, free=100.0, step=0.1)
    together = combine([roomy, tight])
    assert together.peak_bytes.value == 50.0
    assert together.step_seconds == roomy.step_seconds, "the slowest rank counts"
    refused = combine([roomy, probe_made(4, False)])
    assert refused.status == "out of memory"
    assert refused.reason == "rank 1: no memory"


def test_what_decides_about_the_next_probe_is_the_same_for_all_ranks() -> None:
    early, late = probe_made(4, fresh=True, seconds=1.0), probe_made(4, seconds=3.0)
    for together in (
        combine([early, late]),
        combine([early, replace(late, status="hung", reason="x")]),
    ):
        assert together.seconds == 3.0
        assert not together.fresh
    assert combine([early, early]).fresh
    with pytest.raises(Disagreement, match=r"\(rank 0 batch 4, rank 1 batch 8\)"):
        combine([probe_made(4), probe_made(8)])
    assert least_available([Reading(4.0), Reading(2.0), Reading(3.0)]).value == 2.0
    assert least_available([Reading(4.0), UNKNOWN]) == UNKNOWN


def test_every_rank_sees_its_own_card() -> None:
    place = Place(1, 2, 1, 2, 0, 1, "localhost", 1, "0", True)
    assert own_card(place, {}) == {"CUDA_VISIBLE_DEVICES": "1"}
    assert own_card(place, {"CUDA_VISIBLE_DEVICES": "5,7"}) == {"CUDA_VISIBLE_DEVICES": "7"}
    assert own_card(place, {"CUDA_VISIBLE_DEVICES": "5"}) == {}


@pytest.mark.parametrize("listed", [(4, 4), (12, 8), (1, 8, 4)])
def test_caps_that_do_not_increase_are_refused(listed: tuple[int, ...]) -> None:
    with pytest.raises(Refused, match="must increase"):
        plan_configurations("vqa", {"max_crops": 4}, Wanted(max_crops=listed))
