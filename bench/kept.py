"""Where does a long command keep what it has measured, so that it goes on where it was ended?"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from diagnose.measure.machine.describe import count_cores, read_commit, read_cpu_model
from diagnose.records.files import write_file

ROOT = Path(__file__).resolve().parents[1]


class Kept:
    """The entries measured so far, all with the same settings, machine and commit."""

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        self.path = path
        commit = read_commit(ROOT).value or "unknown"
        self.settings = {
            **settings,
            "processor": read_cpu_model(Path("/")).value or "unknown",
            "cores": count_cores(),
            "commit": commit,
        }
        self.entries: list[dict[str, Any]] = []
        if not path.exists():
            return
        try:
            found = json.loads(path.read_text())
            self.entries = found["entries"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            sys.exit(f"{path} cannot be read ({error}); remove it or name another --output")
        if found["settings"] != self.settings:
            sys.exit(f"{path} has other settings ({found['settings']}); name another --output")

    def add(self, entry: dict[str, Any]) -> None:
        self.entries.append(entry)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"settings": self.settings, "entries": self.entries}, indent=1) + "\n"
        write_file(self.path, lambda temporary: temporary.write_text(text))

    def publish(self, question: str, command: str, answer: str) -> None:
        """A page for a person, beside the file."""
        named = "".join(f"| {name} | {value} |\n" for name, value in self.settings.items())
        page = (
            f"# {question}\n\nWritten by `{command}`.\n\n{answer}\n\n"
            f"| setting | value |\n| :-- | :-- |\n{named}"
        )
        self.path.with_suffix(".md").write_text(page, encoding="utf-8")
