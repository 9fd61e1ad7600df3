"""Do several ranks time the same steps in the same order? Ranks are threads with clocks of their
own that only move when told, so every duration is exact.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diagnose.measure.clock import SMOKE, Timed, Track, measure
from diagnose.measure.peers import StepFailed
from tests.support.fake_timer import FakeTimer

T = TypeVar("T")

EFFORT = replace(SMOKE, limit_seconds=1e9, slot_seconds=1.0)


class Table:
    """Where the ranks meet: they lay something down, and see what the others laid down."""

    def __init__(self, ranks: int) -> None:
        self.places: list[Any] = [None] * ranks
        self.barrier = threading.Barrier(ranks, timeout=20)


class ThreadRank:
    """One rank of several in this process."""

    def __init__(self, rank: int, table: Table) -> None:
        self.rank = rank
        self.words: list[str] = []
        self._table = table

    def at(self, text: str) -> None:
        self.words.append(text)

    def gather_objects(self, value: Any) -> list[Any]:
        self._table.places[self.rank] = value
        self._table.barrier.wait()
        seen = list(self._table.places)
        self._table.barrier.wait()
        return seen

    def broadcast(self, value: Any) -> Any:
        return self.gather_objects(value)[0]

    def barrier(self) -> None:
        self._table.barrier.wait()


def on_ranks(ranks: int, work: Callable[[ThreadRank], T]) -> list[T]:
    """What every rank's work returns; the first exception is raised."""
    table = Table(ranks)
    with ThreadPoolExecutor(ranks) as pool:
        return list(pool.map(lambda rank: work(ThreadRank(rank, table)), range(ranks)))


def after(blocks: int) -> Callable[[Sequence[Sequence[float]]], Sequence[str]]:
    """A stopping rule that is content after so many blocks."""
    return lambda slots: ["" if len(each) >= blocks else "too few" for each in slots]


def time_ranks(
    seconds: Sequence[Sequence[float]],
    alone: Sequence[bool] | None = None,
    blocks: int = 3,
    taken: list[list[str]] | None = None,
    **more: Any,
) -> list[list[Track]]:
    """The tracks by rank, of variants whose steps take seconds[rank][variant]."""

    def work(peers: ThreadRank) -> list[Track]:
        timer = FakeTimer()

        def step(name: str, cost: float) -> None:
            if taken is not None:
                taken[peers.rank].append(name)
            timer.spend(cost)

        variants = [
            Timed(
                f"v{index}",
                lambda name=f"v{index}", cost=cost: step(name, cost),  # type: ignore[misc]
                alone=bool(alone and alone[index]),
            )
            for index, cost in enumerate(seconds[peers.rank])
        ]
        return measure(variants, EFFORT, timer, peers=peers, seed=5, stop=after(blocks), **more)

    return on_ranks(len(seconds), work)


def test_every_rank_takes_the_same_slots_in_the_same_order() -> None:
    taken: list[list[str]] = [[], [], []]
    time_ranks([[2.0, 3.0, 5.0]] * 3, blocks=8, taken=taken)
    assert taken[0] == taken[1] == taken[2]
    slots = taken[0][-24:]
    blocks = [tuple(slots[at : at + 3]) for at in range(0, 24, 3)]
    assert all(sorted(block) == ["v0", "v1", "v2"] for block in blocks)
    assert len(set(blocks)) > 1, "the order within a block must be random"


def test_the_slowest_rank_counts_and_all_ranks_are_kept() -> None:
    for tracks in time_ranks([[2.0], [4.0]]):
        assert tracks[0].by_rank == ((2.0,) * 3, (4.0,) * 3)
        assert tracks[0].slowest == [4.0] * 3
        assert tracks[0].timing().slot_seconds == (4.0,) * 3


def test_one_rank_works_alone_while_the_others_wait() -> None:
    taken: list[list[str]] = [[], []]
    tracks = time_ranks([[2.0, 3.0], [9.0, 3.0]], alone=[True, False], taken=taken)
    assert "v0" in taken[0]
    assert "v0" not in taken[1]
    assert tracks[1][0].by_rank == ((2.0,) * 3, ())
    assert tracks[1][0].slowest == [2.0] * 3


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(1e-4, 10.0), min_size=1, max_size=3))
def test_a_slot_is_long_enough_on_the_slowest_rank(costs: list[float]) -> None:
    tracks = time_ranks([[cost] for cost in costs], blocks=1)
    assert len({each[0].steps for each in tracks}) == 1
    assert tracks[0][0].slowest[0] >= EFFORT.slot_seconds


def test_the_clock_of_rank_0_decides_when_time_is_up() -> None:
    def work(peers: ThreadRank) -> int:
        timer = FakeTimer()
        cost = 2.0 if peers.rank == 0 else 1000.0
        step = Timed("step", lambda: timer.spend(cost))
        effort = replace(EFFORT, limit_seconds=9.0)
        tracks = measure([step], effort, timer, peers=peers, seed=0, stop=after(99))
        assert tracks[0].unmet == "too few"
        return len(tracks[0].blocks)

    assert on_ranks(2, work) == [5, 5]


def test_the_record_can_follow_block_by_block() -> None:
    seen: list[int] = []
    time_ranks([[2.0]], blocks=3, on_block=lambda tracks: seen.append(len(tracks[0].blocks)))
    assert seen == [1, 2, 3]


def test_every_slot_says_where_the_rank_is() -> None:
    def work(peers: ThreadRank) -> list[str]:
        timer = FakeTimer()
        step = Timed("together full input", lambda: timer.spend(2.0))
        measure([step], EFFORT, timer, peers=peers, seed=0, stop=after(1))
        return peers.words

    (words,) = on_ranks(1, work)
    assert words[0] == "warm-up of 'together full input'"
    assert words[-1] == "step 'together full input'"


def describe(error: Exception) -> tuple[str, str]:
    kind = "lost peers" if isinstance(error, ConnectionError) else "failed"
    return kind, f"raised {error}"


def fail(peers: ThreadRank, errors: Sequence[Exception | None], described: bool) -> str:
    """What each rank hears when the third step of some of them raises."""
    timer, steps = FakeTimer(), 0

    def step() -> None:
        nonlocal steps
        steps += 1
        timer.spend(2.0)
        error = errors[peers.rank]
        if steps == 3 and error is not None:
            raise error

    known = describe if described else None
    variants, rule = [Timed("step", step)], after(9)
    try:
        measure(variants, EFFORT, timer, peers=peers, seed=0, stop=rule, describe=known)
    except StepFailed as failure:
        return str(failure)
    return "nothing"


@pytest.mark.parametrize(
    ("errors", "sentence"),
    [
        ((None, MemoryError("no room")), "rank 1 raised no room"),
        # Who lost its peer is not to blame.
        ((ConnectionError("closed"), MemoryError("no room")), "rank 1 raised no room"),
        ((ValueError("wrong"), ValueError("wrong")), "every rank raised wrong"),
    ],
)
def test_a_failure_is_heard_on_all_ranks(errors: Sequence[Exception | None], sentence: str) -> None:
    assert on_ranks(2, lambda peers: fail(peers, errors, True)) == [sentence] * 2


def test_without_a_description_the_error_itself_ends_the_rank() -> None:
    with pytest.raises(MemoryError, match="no room"):
        on_ranks(1, lambda peers: fail(peers, [MemoryError("no room")], False))
