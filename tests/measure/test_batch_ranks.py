"""Ranks that look for a batch together: the same guess, the same batch, nobody left waiting."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest

from diagnose.measure.batch_size import agree
from diagnose.measure.batch_size.agree import Agreement
from diagnose.measure.ranks.job.rendezvous import Place
from diagnose.measure.session import CouldNotOpen
from diagnose.records.batch_size import Probe
from diagnose.records.header import Reading
from tests.support.rank_jobs import find_free_port

Told = TypeVar("Told")


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Agreement]]:
    monkeypatch.setattr(agree, "REOPEN_SECONDS", 0.0)
    monkeypatch.setattr(agree, "FAREWELL_SECONDS", 1.0)
    monkeypatch.setattr(agree, "BEAT_SECONDS", 0.05)
    port = find_free_port()
    places = [Place(r, 2, r, 2, 0, 1, "127.0.0.1", port, "0", False) for r in range(2)]
    agreed = [Agreement(place, probe_seconds=1.0) for place in places]
    yield agreed
    for each in agreed:
        each.stop()


def at_once(first: Callable[[], Told], second: Callable[[], Told]) -> tuple[Told, Told]:
    with ThreadPoolExecutor(2) as pool:
        told = [pool.submit(first), pool.submit(second)]
        return told[0].result(), told[1].result()


def agree_once(ranks: list[Agreement]) -> None:
    at_once(lambda: ranks[0].agree(fitting(1)), lambda: ranks[1].agree(fitting(1)))


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


@pytest.mark.parametrize("waiting", [0, 1])
def test_a_rank_without_an_answer_ends_the_wait_of_the_other(
    ranks: list[Agreement], waiting: int
) -> None:
    agree_once(ranks)
    lost = f"rank {1 - waiting} gave no answer within 1 s"
    assert complaint(lambda: ranks[waiting].agree(fitting(2))) == lost


def test_a_store_that_is_gone_ends_the_wait_of_the_others(ranks: list[Agreement]) -> None:
    keeper = ranks.pop(0)
    keeper.stop()
    del keeper  # and with it the store
    assert complaint(lambda: ranks[0].agree(fitting(1))) == (
        "the store of the job is gone: rank 0 has ended or is out of reach"
    )


def test_a_rank_that_falls_silent_is_missed(
    ranks: list[Agreement], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one on another host would: its process cannot be looked up, only its beats are missing."""
    monkeypatch.setattr(agree, "SILENCE_SECONDS", 0.3)
    agree_once(ranks)
    ranks[1].stop()
    ranks[0]._patience = 60.0
    assert complaint(lambda: ranks[0].agree(fitting(2))) == (
        "rank 1 is gone: no sign of life for 0.3 s; its process is stopped, or its host or link "
        "is down"
    )


def test_an_interrupted_rank_names_the_one_that_died(ranks: list[Agreement]) -> None:
    """torchrun interrupts the others; only then is it of interest whether one is gone."""
    agree_once(ranks)
    with pytest.raises(KeyboardInterrupt), ranks[0]:
        raise KeyboardInterrupt
    ended = subprocess.Popen(["true"])
    ended.wait(timeout=10)
    ranks[0]._processes[1] = ended.pid
    with pytest.raises(CouldNotOpen, match="rank 1 is gone: its process has ended"), ranks[0]:
        raise KeyboardInterrupt
