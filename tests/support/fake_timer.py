"""A clock that only moves when told: every duration in a test is exact."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, Literal


class FakeTimer:
    """Time passes when a step spends it, or when the device is waited for."""

    def __init__(self, *, sync_seconds: float = 0.0, events: bool = True) -> None:
        self.time = 100.0
        self.syncs = 0
        self.held_bytes: int | None = None
        self._sync_seconds = sync_seconds
        self._events = events

    @property
    def step_clock(self) -> Literal["wall", "device events"]:
        return "device events"

    def spend(self, seconds: float) -> None:
        self.time += seconds

    def now(self) -> float:
        return self.time

    def synchronize(self) -> None:
        self.syncs += 1
        self.time += self._sync_seconds

    def stamp(self) -> object:
        return self.time

    def between(self, stamps: Sequence[Any]) -> tuple[float, ...] | None:
        if not self._events:
            return None
        return tuple(b - a for a, b in itertools.pairwise(stamps))

    def footprint(self) -> int | None:
        return self.held_bytes


def step_of(timer: FakeTimer, seconds: Sequence[float]) -> Callable[[], None]:
    """A step that takes the given times one after the other, then the last one for ever."""
    left = list(seconds)

    def step() -> None:
        timer.spend(left.pop(0) if len(left) > 1 else left[0])

    return step
