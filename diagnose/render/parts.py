"""What is a report made of? One part for each record that lies in a label's directory."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from diagnose.analyze import derive
from diagnose.records.verbs import VERBS, Verb
from diagnose.render import figures, store
from diagnose.render.closing import closing
from diagnose.render.page import Page, render_page
from diagnose.render.part import Part


@dataclass(frozen=True)
class Told:
    """A record, and how it is shown."""

    part: Part
    record: Any

    @functools.cached_property
    def page(self) -> Page:
        return replace(self.part.page(self.record), question=self.part.question)

    def figure_names(self) -> Sequence[str]:
        return tuple(self.part.figures(self.record))

    def draw_all(self) -> Mapping[str, bytes]:
        fingerprint = derive.fingerprint(self.record)
        drawn = self.part.figures(self.record).items()
        return {name: figures.draw(figure, fingerprint) for name, figure in drawn}

    def exports(self) -> Mapping[str, str]:
        if self.part.export is None:
            return {}
        return {f"{Path(self.part.record_name).stem}.csv": self.part.export(self.record)}


def _part(verb: Verb) -> Part:
    """As the verb's own file in this room says."""
    part = importlib.import_module(f"diagnose.render.{verb.module}").PART
    assert isinstance(part, Part)
    return part


PARTS = tuple(_part(verb) for verb in VERBS if verb.leaves_record)


def load_parts(directory: Path) -> list[Told]:
    """Everything that was measured under a label; a damaged record is a StoreError."""
    found = [(part, directory / part.record_name) for part in PARTS]
    return [Told(part, store.load(path, part.kind)) for part, path in found if path.exists()]


def render_parts(told: Sequence[Told]) -> str:
    """One report: the pages of all records as one, closed by what they share."""
    pages = [each.page for each in told]
    return render_page(pages, closing(pages))
