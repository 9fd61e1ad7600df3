"""Which characters may have been meant? For each character, those it is easily confused with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from bench.data import confusion, vocabulary

COUNT = 16  # of one character, itself among them


def list_candidates(index: int, frequent: Sequence[str], size: int = vocabulary.SIZE) -> list[int]:
    """The id itself, then same sound, similar sound, similar shape, frequent: none twice."""
    found = {index: None}
    character = vocabulary.decode([index])
    for kind in confusion.SHARES:
        # [UNK] stands for any character, so it has neither a sound nor a shape.
        if index == vocabulary.UNK and kind != "frequent":
            continue
        others = confusion.candidates(kind, character, frequent)
        known = [each for each in vocabulary.encode("".join(others)) if each < size]
        found.update(dict.fromkeys(known))
        if len(found) >= COUNT:
            break
    return list(found)[:COUNT]


def tabulate(
    indices: Iterable[int], frequent: Sequence[str], size: int = vocabulary.SIZE
) -> Tensor:
    """(vocabulary, COUNT): row i holds the candidates of id i; [PAD] in the rows not asked for."""
    table = torch.full((size, COUNT), vocabulary.PAD)
    for index in set(indices) - {vocabulary.PAD}:
        listed = list_candidates(index, frequent, size)
        table[index, : len(listed)] = torch.tensor(listed)
    return table
