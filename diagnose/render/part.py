"""What must a kind of record offer to be read? A question, a page, figures, perhaps a CSV file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from diagnose.render.page import Page
from diagnose.render.store import Record

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Part:
    """How one kind of record is shown."""

    kind: type[Record]
    question: str  # that it answers, for the index and the top of a joint report
    page: Callable[[Any], Page]
    # By file name, those that this record has. Asking for them imports no plotting library.
    figures: Callable[[Any], Mapping[str, Callable[[], Figure]]]
    # The measurements as CSV, for a file beside the record.
    export: Callable[[Any], str] | None = None

    @property
    def record_name(self) -> str:
        return self.kind.FILE_NAME
