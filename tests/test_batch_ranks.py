"""Ranks that look for a batch together: the same guess, the same batch, nobody left waiting."""

from __future__ import annotations

import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest

from diagnose.measure.batch_size import agree
from diagnose.measure.batch_size.agree import Agreement
from diagnose.measure.ranks.rendezvous import Place
from diagnose.measure.supervisor import CouldNotOpen
from diagnose.model import Reading
from diagnose.sizes import Probe

Told = TypeVar("Told")


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> list[Agreement]:
    monkeypatch.setattr(agree, "REOPEN_SECONDS", 0.0)
    monkeypatch.setattr(agree, "FAREWELL_SECONDS", 1.0)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    places = [Place(r, 2, r, 2, 0, 1, "127.0.0.1", port, "0", False) for r in range(2)]
    return [Agreement(place, probe_seconds=1.0) for place in places]


def at_once(first: Callable[[], Told], second: Callable[[], Told]) -> tuple[Told, Told]:
    with ThreadPoolExecutor(2) as pool:
        told = [pool.submit(first), pool.submit(second)]
        return told[0].result(), told[1].result()


def complaint(speak: Callable[[], object]) -> str:
    with pytest.raises(CouldNotOpen) as caught:
        speak()
    return str(caught.value)


def fitting(batch: int) -> Probe:
    return Probe(batch, "fits", Reading(1.0), Reading(10.0), (0.1,))


def test_all_guess_from_the_least_memory(ranks: list[Agreement]) -> None:
    told = at_once(
        lambda: ranks[0].agree_on_memory(Reading(16e9)),
        lambda: ranks[1].agree_on_memory(Reading(8e9)),
    )
    assert told == (Reading(8e9), Reading(8e9))


def test_unequal_batches_are_refused(ranks: list[Agreement]) -> None:
    told = at_once(
        lambda: complaint(lambda: ranks[0].agree(fitting(4))),
        lambda: complaint(lambda: ranks[1].agree(fitting(8))),
    )
    assert set(told) == {
        "the ranks tried different batches (rank 0 batch 4, rank 1 batch 8); start all with the "
        "same options"
    }


def test_a_lost_rank_ends_the_wait_of_the_others(ranks: list[Agreement]) -> None:
    at_once(lambda: ranks[0].agree(fitting(1)), lambda: ranks[1].agree(fitting(1)))
    assert complaint(lambda: ranks[0].agree(fitting(2))) == "rank 1 gave no answer within 1 s"
    ranks[0].close()


def test_a_lost_first_rank_ends_the_wait_of_the_others(ranks: list[Agreement]) -> None:
    assert complaint(lambda: ranks[1].agree(fitting(1))) == "rank 0 gave no answer within 1 s"
