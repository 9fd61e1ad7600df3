"""How many bytes do the operators of a step read and write, if no cache helps?"""

from __future__ import annotations

from functools import cache
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from diagnose.measure.lines.operators import operand_tensors

# These read as much of their table as they hand out.
_GATHERS = frozenset(
    f"aten::{name}" for name in ("embedding", "index", "index_select", "gather", "select_backward")
)


class Traffic(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up every operand and every result; views move nothing.

    More than really moves, because neighbours in time find some of it in a cache: where this is
    little, memory is not what a step waits for.
    """

    def __init__(self, device: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device = device
        self.nbytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        given = (*args, *(kwargs or {}).values())
        result = func(*args, **(kwargs or {}))
        if not func.is_view:
            written = self._weigh((result,)) or self._weigh(
                [given[place] for place in _written(func) if place < len(given)]
            )
            gathers = func._schema.name in _GATHERS
            self.nbytes += written + (written if gathers else self._weigh(given))
        return result

    def _weigh(self, values: Any) -> int:
        own = [each for each in operand_tensors(values) if each.device.type == self._device]
        return sum(each.numel() * each.element_size() for each in own)


@cache
def _written(operator: Any) -> list[int]:
    """The places of the arguments that are changed, which some operators do not hand back."""
    arguments = operator._schema.arguments
    return [at for at, each in enumerate(arguments) if each.alias_info and each.alias_info.is_write]
