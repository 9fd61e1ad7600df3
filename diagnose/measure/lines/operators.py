"""What does one operator ask of the device? Work, memory, arithmetic, and whether the host waits.

An operator is a launch when it writes a tensor, makes a new one or reads a value back. Views,
changes of shape or strides in place, and bare allocations ask the device for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

# These hand out memory that nothing has written yet.
_ALLOCATIONS = frozenset(
    f"aten::{name}"
    for name in (
        "empty",
        "empty_like",
        "empty_permuted",
        "empty_strided",
        "new_empty",
        "new_empty_strided",
    )
)
_INDEXINGS = frozenset(
    f"aten::{name}" for name in ("index", "index_put", "index_put_", "_index_put_impl_")
)
_COPIES = frozenset(("aten::_to_copy", "aten::copy_"))
# A mask as an index is turned into positions, and their number is known to the device alone.
_MASKS = (torch.bool, torch.uint8)


@dataclass(frozen=True)
class Effect:
    """What one operator did."""

    name: str
    launches: bool
    synchronizes: bool  # the host waits for a value; on the CPU: it would on an accelerator
    new_bytes: tuple[int, ...]  # of every tensor that it allocated on the device
    flops: int


def observe(
    operator: torch._ops.OpOverload,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    result: object,
    device: str,
) -> Effect:
    """Judge an operator that has just run, for a device of this type."""
    kind = _kind(operator)
    inputs = operand_tensors((*args, *kwargs.values()))
    outputs = operand_tensors((result,))
    known = {_memory(tensor) for tensor in inputs}
    made = [(_memory(tensor), tensor) for tensor in outputs]
    fresh = {memory: tensor for memory, tensor in made if memory not in known}
    on_device = any(tensor.device.type == device for tensor in (*inputs, *outputs))
    synchronizes = _synchronizes(operator, kind, args, kwargs, inputs, outputs, device)
    makes = bool(fresh) and kind.name not in _ALLOCATIONS
    return Effect(
        name=kind.name.removeprefix("aten::"),
        launches=on_device and (kind.writes or makes or synchronizes),
        synchronizes=synchronizes,
        new_bytes=tuple(_nbytes(each) for each in fresh.values() if each.device.type == device),
        flops=int(kind.count(*args, **kwargs, out_val=result)) if kind.count and on_device else 0,
    )


@dataclass(frozen=True)
class _Kind:
    """What is known of an operator before it runs; torch takes long to tell."""

    name: str
    writes: bool
    depends_on_data: bool
    count: Callable[..., int] | None


@cache
def _kind(operator: torch._ops.OpOverload) -> _Kind:
    tags = operator.tags
    return _Kind(
        operator._schema.name,
        operator._schema.is_mutable and torch.Tag.inplace_view not in tags,
        torch.Tag.data_dependent_output in tags or torch.Tag.dynamic_output_shape in tags,
        flop_registry.get(operator.overloadpacket),
    )


def _synchronizes(
    operator: torch._ops.OpOverload,
    kind: _Kind,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    inputs: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
    device: str,
) -> bool:
    name = kind.name
    if name in _COPIES and device != "cpu" and any(each.device.type == device for each in outputs):
        return _waits_for_host_memory(operator, args, kwargs, inputs)
    if not any(tensor.device.type == device for tensor in inputs):
        return False
    if name in _COPIES:
        to_host = device != "cpu" and all(tensor.device.type == "cpu" for tensor in outputs)
        return to_host and not _argument(operator, args, kwargs, "non_blocking")
    if name in _INDEXINGS:
        return _indexes_by_mask(operator, args, kwargs)
    if name == "aten::repeat_interleave":
        return _argument(operator, args, kwargs, "output_size") is None
    return kind.depends_on_data


def _waits_for_host_memory(
    operator: torch._ops.OpOverload,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    inputs: Sequence[torch.Tensor],
) -> bool:
    """Whether a copy to the device makes the host wait: only one from pinned memory may not."""
    source = next((each for each in inputs if each.device.type == "cpu"), None)
    if source is None:
        return False
    return not (_argument(operator, args, kwargs, "non_blocking") and source.is_pinned())


def _indexes_by_mask(
    operator: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> bool:
    indices = operand_tensors((_argument(operator, args, kwargs, "indices"),))
    if not any(tensor.dtype in _MASKS for tensor in indices):
        return False
    # torch fills the masked places without positions when the value is one number of the host.
    value = _argument(operator, args, kwargs, "values")
    accumulates = _argument(operator, args, kwargs, "accumulate")
    one_number = value is not None and value.numel() == 1 and value.device.type == "cpu"
    return bool(accumulates) or not one_number


def _argument(
    operator: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], name: str
) -> Any:
    """An argument by its name in the operator's schema; None where it is left out or unknown."""
    if name in kwargs:
        return kwargs[name]
    names = [argument.name for argument in operator._schema.arguments]
    place = names.index(name) if name in names else len(args)
    return args[place] if place < len(args) else None


def operand_tensors(values: Iterable[Any]) -> list[torch.Tensor]:
    """Operators nest tensors no deeper than in a list."""
    found = []
    for each in values:
        if isinstance(each, torch.Tensor):
            found.append(each)
        elif isinstance(each, list | tuple):
            found += [part for part in each if isinstance(part, torch.Tensor)]
    return found


def _memory(tensor: torch.Tensor) -> int:
    """The same number for tensors that share memory; sparse tensors have no single storage."""
    if tensor.layout is not torch.strided:
        return id(tensor)
    return int(tensor.untyped_storage()._cdata)


def _nbytes(tensor: torch.Tensor) -> int:
    if tensor.layout is not torch.strided:
        return tensor.numel() * tensor.element_size()
    return tensor.untyped_storage().nbytes()
