"""What does a report look like, whatever it is about? Answer first, details folded, each once.

The order is that of a field report written by hand: machine and link, stage table, what was
excluded, the bottleneck with its code, each change, before and after, the command to use, what is
left. Several records of one label are one page: their sections are sorted into that order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from diagnose.records.header import Header
from diagnose.render.markdown import escape, prose

# A person reads no more than this; whatever is longer belongs into folded details.
MOST_OPEN_LINES = 150


class Place(IntEnum):
    """Where a section stands in the report, whichever record it comes from."""

    FIRST_SCREEN = 0  # one figure and the table that the answer rests on
    TO_DO = 1
    LINK = 2
    EXCLUDED = 3
    BOTTLENECK = 4
    CHANGES = 5
    BEFORE_AFTER = 6
    COMMAND = 7
    LEFT = 8  # open questions, flags, what to distrust
    DETAILS = 9


@dataclass(frozen=True)
class Section:
    """One heading and what stands under it."""

    place: Place
    title: str
    blocks: Sequence[str]
    folded: bool = False


@dataclass(frozen=True)
class Page:
    """What one record has to say."""

    header: Header
    title: str
    question: str
    answer: str
    sections: Sequence[Section]


def render_page(pages: Sequence[Page], closing: Sequence[Section] = ()) -> str:
    """One report from all records of a label; `closing` is what they share (machine, method)."""
    blocks = [f"# {escape(pages[0].title)}", *_no_result(pages)]
    if len(pages) == 1:
        blocks.append(f"**{prose(pages[0].answer)}**")
    else:
        answers = [f"- {escape(page.question)} **{prose(page.answer)}**" for page in pages]
        blocks.append("\n".join(answers))
    sections = [section for page in pages for section in page.sections]
    # Stable: within a place the records keep the order in which a job is examined.
    for section in sorted([*sections, *closing], key=lambda each: each.place):
        blocks += _section(section)
    return "\n\n".join(blocks) + "\n"


def _section(section: Section) -> list[str]:
    if not section.blocks:
        return []
    if not section.folded:
        return [f"## {escape(section.title)}", *section.blocks]
    # GitHub renders Markdown inside details only after an empty line.
    summary = f"<details><summary>{escape(section.title)}</summary>"
    return [summary, *section.blocks, "</details>"]


def _no_result(pages: Sequence[Page]) -> list[str]:
    """What must stand above numbers that are none."""
    sources = dict.fromkeys(
        page.header.source for page in pages if page.header.source != "hardware"
    )
    blocks = [
        f"**Not a result: measured on a {escape(source)}, to test the tool itself.**"
        for source in sources
    ]
    if any(page.header.effort == "smoke" for page in pages):
        blocks.append("**Not a result: a smoke run takes too few steps to mean anything.**")
    return blocks


def count_open_lines(text: str) -> int:
    """Lines that a reader sees without opening anything."""
    count, depth = 0, 0
    for line in text.splitlines():
        if line.startswith("<details"):
            depth += 1
        elif line.startswith("</details"):
            depth -= 1
        elif depth == 0 and line.strip():
            count += 1
    return count
