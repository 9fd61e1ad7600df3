"""What if a batch does not fit? Halve it, down to single samples, and lose nothing on the way.

Only the number of samples in a batch changes, never how answers are written, so the answers are
those of a run that never failed. The size that failed is not tried again for the samples that
follow. Where growth is allowed, the batches of the evaluation itself are the attempts: upwards
by doubling, then by halving the gap to what failed.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch

from diagnose.measure.machine.out_of_memory import is_out_of_memory, read_asked_for
from diagnose.records.evaluation import Fallback

T = TypeVar("T")
R = TypeVar("R")


class DoesNotFit(MemoryError):
    """A single sample is too much; there is nothing left to halve."""

    def __init__(self, sample: Any, asked_for: str) -> None:
        super().__init__("a single sample does not fit into memory")
        self.sample = sample
        self.asked_for = asked_for


class Fitting:
    """The batch size in force, which falls when memory is short and may grow while it is not."""

    def __init__(
        self,
        batch_size: int,
        *,
        ceiling: int | None = None,
        attempts: int = 0,
        on_fallback: Callable[[Fallback], object] = lambda fallback: None,
        release: Callable[[], object] = gc.collect,
    ) -> None:
        """`attempts` is how often a larger batch may be tried, up to `ceiling`."""
        self.batch_size = batch_size
        self.fallbacks: list[Fallback] = []
        self._ceiling = batch_size if ceiling is None else ceiling
        self._attempts = attempts
        self._on_fallback = on_fallback
        self._release = release
        self._fitted = 0
        self._failed: int | None = None

    def run(
        self, samples: Sequence[T], work: Callable[[Sequence[T]], R]
    ) -> Iterator[tuple[Sequence[T], R]]:
        """Every sample once, in order, with what `work` made of the part that it was in."""
        rest = samples
        while rest:
            part, later = rest[: self.batch_size], rest[self.batch_size :]
            asked_for = None
            try:
                made = work(part)
            except Exception as error:
                if not is_out_of_memory(error, torch.OutOfMemoryError):
                    raise
                asked_for = read_asked_for(error)
            if asked_for is None:
                rest = later
                yield part, made
                self._grow(len(part))
                continue
            # Only here is the exception gone, and with it the frames that held the tensors.
            self._release()
            if len(part) == 1:
                raise DoesNotFit(part[0], asked_for)
            self._shrink(len(part), asked_for)

    def _shrink(self, failed: int, asked_for: str) -> None:
        self._failed = failed
        if self._fitted >= failed:
            self._fitted = 0  # with shorter samples, it seems
        self.batch_size = max(failed // 2, self._fitted)
        self.fallbacks.append(Fallback(failed, self.batch_size, asked_for))
        self._on_fallback(self.fallbacks[-1])

    def _grow(self, fitted: int) -> None:
        if fitted < self.batch_size:
            return  # the last samples of the data: no attempt at this size
        self._fitted = fitted
        larger = 2 * fitted if self._failed is None else (fitted + self._failed) // 2
        larger = min(larger, self._ceiling)
        if self._attempts > 0 and larger > fitted:
            self._attempts -= 1
            self.batch_size = larger
