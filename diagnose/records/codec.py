"""How do the data types become JSON and come back? Driven by the annotations, written once."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import types
from collections.abc import Mapping
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


def dumps(record: Any) -> bytes:
    """Serialize completely before any file is opened; NaN and infinity are errors here."""
    text = json.dumps(dataclasses.asdict(record), allow_nan=False, ensure_ascii=False, indent=1)
    return text.encode() + b"\n"


def to_dict(record: Any) -> dict[str, Any]:
    return dataclasses.asdict(record)


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    """Annotations are text until they are evaluated, which takes longer than all the rest."""
    return get_type_hints(kind)


def from_dict(kind: type[T], data: Any, path: str = "record") -> T:
    """Build `kind` from parsed JSON. Unknown keys are ignored: a newer minor writer is no error."""
    if not isinstance(data, dict):
        raise ValueError(f"{path}: expected an object, found {type(data).__name__}")
    hints = _hints(kind)  # type: ignore[arg-type]
    values = {}
    for spec in dataclasses.fields(kind):  # type: ignore[arg-type]
        if spec.name in data:
            values[spec.name] = _convert(hints[spec.name], data[spec.name], f"{path}.{spec.name}")
        elif spec.default is dataclasses.MISSING and spec.default_factory is dataclasses.MISSING:
            raise ValueError(f"{path}.{spec.name}: missing")
    return kind(**values)


def _convert(kind: Any, value: Any, path: str) -> Any:
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return _convert_union(get_args(kind), value, path)
    if origin is Literal:
        if value in get_args(kind):
            return value
        raise ValueError(f"{path}: {value!r} is not one of {', '.join(map(str, get_args(kind)))}")
    if origin is tuple:
        if not isinstance(value, list):
            raise ValueError(f"{path}: expected a list, found {type(value).__name__}")
        items = get_args(kind)
        if items[-1] is Ellipsis:
            items = items[:1] * len(value)
        if len(items) != len(value):
            raise ValueError(f"{path}: expected {len(items)} values, found {len(value)}")
        return tuple(_convert(items[i], each, f"{path}[{i}]") for i, each in enumerate(value))
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, dict):
            raise ValueError(f"{path}: expected an object, found {type(value).__name__}")
        item = get_args(kind)[1]
        return {key: _convert(item, each, f"{path}.{key}") for key, each in value.items()}
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return from_dict(kind, value, path)
    return _convert_scalar(kind, value, path)


def _convert_union(options: tuple[Any, ...], value: Any, path: str) -> Any:
    if value is None and type(None) in options:
        return None
    for option in options:
        # bool is an int in Python, so an exact type match is asked for first.
        if option is type(value):
            return _convert(option, value, path)
    others = [option for option in options if option is not type(None)]
    for option in others:
        try:
            return _convert(option, value, path)
        except ValueError:
            if len(others) == 1:  # only one thing can have been meant: its error says more
                raise
    raise ValueError(f"{path}: {value!r} has the wrong type")


def _convert_scalar(kind: Any, value: Any, path: str) -> Any:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind is float and number:
        try:
            result = float(value)
        except OverflowError:
            result = math.inf
        if not math.isfinite(result):
            raise ValueError(f"{path}: the number is not finite")
        return result
    if type(value) is not kind:
        raise ValueError(
            f"{path}: expected {getattr(kind, '__name__', kind)}, found {type(value).__name__}"
        )
    return value
