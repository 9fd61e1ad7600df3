"""How do tests get at a function of somebody's file, and at the line in it that is marked?"""

from __future__ import annotations

from pathlib import Path
from types import CodeType
from typing import Any

from diagnose.measure.script.change.doubling import Doubling
from tests.support.script_runs import line_of, write_script


class Script:
    """A file of the user's, executed as a module is."""

    def __init__(self, directory: Path, code: str) -> None:
        self.path = write_script(directory, code)
        self.seen: list[Any] = []
        self.names: dict[str, Any] = {"see": self.seen.append}
        source = self.path.read_text(encoding="utf-8")
        exec(compile(source, str(self.path), "exec", dont_inherit=True), self.names)

    def code(self, function: str) -> CodeType:
        owner: Any = None
        for part in function.split("."):
            owner = self.names[part] if owner is None else vars(owner)[part]
        found: CodeType = owner.__code__
        return found

    def double(self, code: CodeType, anchors: tuple[str, ...] = ()) -> Doubling:
        lines = [line_of(self.path, mark) for mark in anchors]
        return Doubling(code, line_of(self.path, "# here"), lines)
