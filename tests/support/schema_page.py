"""How is docs/json.md made? From the classes of the JSON, and the comments beside their fields."""

from __future__ import annotations

import dataclasses
import inspect
import re
import types
from collections.abc import Iterator, Mapping
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from diagnose.records.diagnosis import SCHEMA, Diagnosis

INTRODUCTION = f"""# What is in the JSON?

`diagnose script --json why.json train.py`, and `watch` likewise, write one object, schema {SCHEMA}.
The number is raised when a field is renamed, removed or changes its meaning; new fields leave it as
it is, so ignore what you do not know. Unknown values are null or carry their reason. The file is
yours: it names your paths and the arguments of your script. What `--label` keeps does not: of
arguments only the names are in it.

```python
import diagnose

found = diagnose.load("why.json")  # or reports/<label>/script.json
print(found.sentence, found.findings[0].cause, found.speed.samples_per_second.value)
```

`load` needs no torch, and raises a ValueError with one sentence where it cannot read a file.
"""


def make_page() -> str:
    return "\n".join([INTRODUCTION, *(_section(each) for each in _reachable(Diagnosis))])


def _section(kind: type) -> str:
    purpose = inspect.cleandoc(kind.__doc__ or "").partition("\n\n")[0].replace("\n", " ")
    hints, meanings = get_type_hints(kind), dict(_comments(kind))
    rows = [
        f"| `{each.name}` | {_name(hints[each.name])} | {_meaning(each.name, meanings)} |"
        for each in dataclasses.fields(kind)
    ]
    head = ["| field | type | meaning |", "| :-- | :-- | :-- |"]
    return "\n".join([f"## {kind.__name__}", "", purpose, "", *head, *rows, ""])


def _meaning(name: str, meanings: Mapping[str, str]) -> str:
    return meanings.get(name, name.replace("_", " ")).replace("|", "\\|")


def _comments(kind: type) -> Iterator[tuple[str, str]]:
    """Each field with the comment behind it, else the one above it."""
    above: list[str] = []
    for line in inspect.getsource(kind).splitlines():
        field = re.match(r"    (\w+): .*?(?:  # (.*))?$", line)
        if field is not None and (field[2] or above):
            yield field[1], field[2] or " ".join(above)
        above = [*above, line.strip("# ")] if line.startswith("    # ") else []


def _reachable(kind: type) -> list[type]:
    """The class and all that its fields hold, in the order in which a reader meets them."""
    found = [kind]
    for each in found:
        for hint in get_type_hints(each).values():
            found += [part for part in _classes(hint) if part not in found]
    return found


def _classes(hint: Any) -> Iterator[type]:
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        yield hint
    for part in get_args(hint):
        yield from _classes(part)


def _name(hint: Any) -> str:
    """As JSON has it."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(map(_name, parts))
    if origin is Literal:
        return ", ".join(f"`{each}`" for each in parts)
    if origin is tuple:
        return f"list of {_name(parts[0])}" if parts[-1] is ... else f"{len(parts)} numbers"
    if origin is not None and issubclass(origin, Mapping):
        return f"object of {_name(parts[1])}"
    if dataclasses.is_dataclass(hint):
        return f"[{hint.__name__}](#{hint.__name__.lower()})"  # type: ignore[union-attr]
    names = {str: "text", int: "integer", float: "number", bool: "true or false"}
    return "null" if hint is type(None) else names[hint]
