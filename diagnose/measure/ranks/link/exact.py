"""Is the sum right? Numbers whose sum over the ranks is exact, and a count of the wrong ones.

Element i of rank r is (31 i + 17 r) mod 251: whole numbers, so that float32 adds them without
rounding for up to 67 000 ranks, and in any order. The period is a prime, because a chunk that
lands in the wrong place is off by a round number of elements, which a round period cannot see.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

PERIOD = 251
_INDEX_STEP = 31
_RANK_STEP = 17
# Rows that are compared at once: some MiB of intermediate results, however large the tensor.
_ROWS = 4096


def fill(buffer: torch.Tensor, rank: int) -> None:
    """Write this rank's share in place."""
    pattern = _pattern(rank).to(buffer.device)
    for rows in _rows(buffer):
        rows.copy_(pattern[: rows.shape[-1]].expand_as(rows))


def count_wrong(buffer: torch.Tensor, world_size: int) -> int:
    """Elements that are not the sum over all ranks."""
    total = torch.stack([_pattern(rank) for rank in range(world_size)]).sum(0).to(buffer.device)
    return sum(int((rows != total[: rows.shape[-1]]).sum()) for rows in _rows(buffer))


def _pattern(rank: int) -> torch.Tensor:
    index = torch.arange(PERIOD)
    return ((index * _INDEX_STEP + rank * _RANK_STEP) % PERIOD).to(torch.float32)


def _rows(buffer: torch.Tensor) -> Iterator[torch.Tensor]:
    """Views that begin with a whole period each."""
    whole = buffer.numel() // PERIOD * PERIOD
    rows = buffer[:whole].view(-1, PERIOD)
    yield from (rows[first : first + _ROWS] for first in range(0, len(rows), _ROWS))
    if whole < buffer.numel():
        yield buffer[whole:]
