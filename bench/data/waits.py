"""How long does a loop wait for its batches?"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

Batch = TypeVar("Batch")


class Waits:
    """Hands batches on, and counts the seconds until each of them is there."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def over(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        began = time.perf_counter()
        for batch in loader:
            self.seconds += time.perf_counter() - began
            yield batch
            began = time.perf_counter()
        self.seconds += time.perf_counter() - began
