"""What does a report look like, whatever it is about? Answer first, details folded, each once.

The order is that of a field report written by hand: machine and link, stage table, what was
excluded, the bottleneck with its code, each change, before and after, the command to use, what is
left. Several records of one label are one page: their sections are sorted into that order.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

from diagnose.records.header import Header, WorkloadFacts
from diagnose.render.markdown import escape, prose
from diagnose.render.table import Cell


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
    nothing: str = ""  # what is said if no record of the report has a block for it


@dataclass(frozen=True)
class Page:
    """What one record has to say; what every record has to say is added by closing.py."""

    header: Header
    title: str
    question: str
    answer: str
    sections: Sequence[Section]
    workload: WorkloadFacts | None = None  # whose settings and data close the report
    # What "How it was measured" says of this record beside its header and its workload.
    method: Sequence[tuple[str, Cell]] = ()


def render_page(pages: Sequence[Page], closing: Sequence[Section] = ()) -> str:
    """One report from all records of a label; `closing` is what they share (machine, method)."""
    blocks = [f"# {escape(pages[0].title)}", *no_result_blocks([page.header for page in pages])]
    if len(pages) == 1:
        blocks.append(f"**{prose(pages[0].answer)}**")
    else:
        answers = [f"- {escape(page.question)} **{prose(page.answer)}**" for page in pages]
        blocks.append("\n".join(answers))
    sections = [section for page in pages for section in page.sections]
    merged = _merge([*sections, *closing])
    for section in merged:
        blocks += _section(section) if section.place < Place.DETAILS else []
    details = [section for section in merged if section.place is Place.DETAILS]
    if details:
        # One fold of folds: a reader who opens it sees a list of titles.
        blocks.append("<details><summary>Details</summary>")
        blocks += [block for section in details for block in _section(section)]
        blocks.append("</details>")
    return "\n\n".join(blocks) + "\n"


def _merge(sections: Sequence[Section]) -> list[Section]:
    """In the order of the report; what several records say under one title stands together."""
    merged: dict[tuple[Place, str], Section] = {}
    # Stable: within a place the records keep the order in which a job is examined.
    for each in sorted(sections, key=lambda each: each.place):
        if not each.blocks and not each.nothing:
            continue
        key = (each.place, each.title)
        earlier = merged.get(key)
        if earlier is None:
            merged[key] = each
        else:
            nothing = earlier.nothing or each.nothing
            merged[key] = replace(earlier, blocks=[*earlier.blocks, *each.blocks], nothing=nothing)
    return list(merged.values())


def _section(section: Section) -> list[str]:
    blocks = _join_lists(section.blocks) or [section.nothing]
    if not section.folded:
        return [f"## {escape(section.title)}", *blocks]
    # GitHub renders Markdown inside details only after an empty line.
    summary = f"<details><summary>{escape(section.title)}</summary>"
    return [summary, *blocks, "</details>"]


def _join_lists(blocks: Sequence[str]) -> list[str]:
    """Lists that follow each other are one: what to do is one list, whichever record says it."""
    joined: list[str] = []
    for block in blocks:
        if joined and all(each.startswith("- ") for each in (joined[-1], block)):
            joined[-1] += f"\n{block}"
        else:
            joined.append(block)
    return joined


def no_result_blocks(headers: Sequence[Header]) -> list[str]:
    """What must stand above numbers that are none."""
    sources = dict.fromkeys(each.source for each in headers if each.source != "hardware")
    blocks = [
        f"**Not a result: measured on a {escape(source)}, to test the tool itself.**"
        for source in sources
    ]
    if any(each.effort == "smoke" for each in headers):
        blocks.append("**Not a result: a smoke run takes too few steps to mean anything.**")
    return blocks


def image(text: str, name: str, drawn: Container[str]) -> list[str]:
    """The figure of that name, if the record has it."""
    return [f"![{escape(text)}]({name})"] if name in drawn else []
