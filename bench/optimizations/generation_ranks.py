"""What do several processes bring? Each answers its share of the questions with its own model."""

from __future__ import annotations

import contextlib
import multiprocessing
import sys
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Protocol

import torch

from bench.optimizations.generation_pass import Answer, Pass, Settings, shard
from diagnose.workload import Generator, Question

# A model of a few GB loads from a slow disk in less.
READY_SECONDS = 120.0
END_SECONDS = 5.0


class OpenOnRank(Protocol):
    """Makes the generator of one rank; it must be known by its name in another process."""

    def __call__(self, rank: int) -> Generator: ...


class ShareError(Exception):
    """The ranks together did not answer every question once."""


class Ranks:
    """Processes that wait between passes, so that starting them is not part of one."""

    def __init__(
        self, open_generator: OpenOnRank, questions: Mapping[int, Question], settings: Settings
    ) -> None:
        # Not forked from here: threads and devices of this process would be in an unknown state.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(_slow_imports())
        own_method = multiprocessing.get_start_method()
        threads = max(1, torch.get_num_threads() // settings.processes)
        self._questions = questions
        self._ranks: list[tuple[multiprocessing.process.BaseProcess, Connection]] = []
        for rank in range(settings.processes):
            ours, theirs = context.Pipe()
            share = shard(questions, rank, settings.processes)
            process = context.Process(
                target=_serve,
                args=(theirs, rank, open_generator, share, settings, threads, own_method),
            )
            process.start()
            theirs.close()
            self._ranks.append((process, ours))
        try:
            for _, pipe in self._ranks:
                _receive(pipe, READY_SECONDS)
        except BaseException:
            self.close()
            raise

    def run(self) -> dict[int, Answer]:
        for _, pipe in self._ranks:
            pipe.send("run")
        return merge([pipe.recv() for _, pipe in self._ranks], self._questions)

    def close(self) -> None:
        for _, pipe in self._ranks:
            pipe.close()
        for process, _ in self._ranks:
            process.join(END_SECONDS)
            if process.is_alive():
                process.kill()
                process.join()


def merge(shares: list[dict[int, Answer]], questions: Mapping[int, Question]) -> dict[int, Answer]:
    """All answers in the order of the questions; one too many or too few is an error."""
    answered = [place for share in shares for place in share]
    if sorted(answered) != sorted(questions):
        raise ShareError(
            f"{len(questions)} questions were asked, {len(answered)} answers came, "
            f"{len(set(answered))} of them to different questions"
        )
    merged = {place: answer for share in shares for place, answer in share.items()}
    return {place: merged[place] for place in questions}


def _slow_imports() -> list[str]:
    """Loaded once for all ranks to come: they take seconds, and a pass takes tenths of one."""
    models = [name for name in sys.modules if name.startswith("transformers.models.")]
    return [__name__, *(name for name in models if ".modeling_" in name)]


def _receive(pipe: Connection, seconds: float) -> None:
    if not pipe.poll(seconds):
        raise TimeoutError(f"a rank was not ready after {seconds:g} s")
    try:
        pipe.recv()
    except EOFError:
        raise RuntimeError("a rank ended before it was ready") from None


def _serve(
    pipe: Connection,
    rank: int,
    open_generator: OpenOnRank,
    share: Mapping[int, Question],
    settings: Settings,
    threads: int,
    start_method: str,
) -> None:
    """Answer until the other end is closed, which also happens when its process ends."""
    torch.set_num_threads(threads)
    # A rank's loader processes start as they would without ranks, not like the rank itself.
    multiprocessing.set_start_method(start_method, force=True)
    work = Pass(open_generator(rank), share, settings)
    with contextlib.suppress(EOFError, ConnectionError):
        pipe.send("ready")
        while True:
            pipe.recv()
            pipe.send(work.run())
