"""How can a method of every tensor be another one for a while, and nothing be left of it?"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch


class TensorMethods:
    """Methods that stand over torch.Tensor's own until they are removed."""

    def __init__(self) -> None:
        self._covered: dict[str, Any] = {}

    def put(self, names: Iterable[str], make: Callable[[str, Any], Any]) -> None:
        """`make` is given a name and the method that stands there now, maybe the script's own."""
        self.remove()
        for name in names:
            self._covered[name] = vars(torch.Tensor).get(name)
            setattr(torch.Tensor, name, make(name, getattr(torch.Tensor, name)))

    def remove(self) -> None:
        while self._covered:
            name, earlier = self._covered.popitem()
            if earlier is None:
                delattr(torch.Tensor, name)  # the original stands in the base class
            else:
                setattr(torch.Tensor, name, earlier)
