"""What holds for every report? Its golden text, and what no record may bring about."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from diagnose.analyze.derive import fingerprint
from diagnose.records.codec import dumps, from_dict
from diagnose.records.ranks import BandwidthRecord
from diagnose.render import seal
from diagnose.render.link import print_table
from diagnose.render.page import render_page
from diagnose.render.store import Record
from tests.support.records import (
    accuracy,
    batch_size,
    experiments,
    generation,
    link,
    run,
    scaling,
    script,
    series,
)
from tests.support.rendered import MOST_OPEN_LINES, count_open_lines, rendered, told

GOLDEN = Path(__file__).parent / "golden"
WHOLE: dict[str, Record] = {
    "report": run.golden_record(),
    "link": link.golden_record(),
    "scaling": scaling.scaling_record(comparisons=scaling.ddp_options()),
    "accuracy": accuracy.golden_record(),
}
# Their golden text leaves out what every report closes with.
PARTS: dict[str, Record] = {
    "optimize": experiments.whole_catalogue(gpus=1),
    "optimize_ladder": series.whole_series(),
    "optimize_evaluation": generation.whole_generation(samples=3200),
    "batch_size": batch_size.golden_record(),
}
FULL: dict[str, Record] = {**WHOLE, **PARTS, "script": script.golden_record()}
# Records that lack this or that: each has a report too.
PARTIAL = {
    "run": run.run_record(),
    "run, slow input": run.slowed_input(),
    "run on the CPU": run.on_cpu(),
    "no stage": replace(run.run_record(), stages=(), complete=False),
    "optimize on the CPU": experiments.whole_catalogue(),
    "nothing optimized": experiments.optimize_record(),
    "optimize, cut short": experiments.optimize_record(
        *experiments.whole_catalogue().comparisons[:3], planned=["apply_prompt", "x"]
    ),
    "link": link.bandwidth_record(),
    "no size": replace(link.golden_record(), sizes=()),
    "scaling on GPUs": scaling.scaling_record(ranks=3, gpus=2),
    "scaling, one block": scaling.scaling_record(blocks=1, link=None),
    "no scaling": replace(
        scaling.scaling_record(), series=(), curve=(), cadence=None, complete=False
    ),
    "batch size": batch_size.batch_size_record(),
    "no case": accuracy.record_of(),
}
# Anything a string from outside could try: cells, tags, links, mentions, terminal, direction.
EVIL = "|x|\n# no\n<b>&[a](http://e.vil)![i](x)`c`*_~$1$ @team \x1b[31mred\x1b[0m \u202eabc\u2066\\"
CELL_BORDER = re.compile(r"(?<!\\)(?:\\\\)*\|")
CONTROL = re.compile("[\x1b\u202e\u2066]")
# Code stands in backticks or a fence, where nothing of it acts.
CODE = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)", re.DOTALL)
ACTIVE = re.compile(r"<(?!/?(?:details|summary)>)[a-zA-Z/!]|@team|(?<!\\)\]\((?:http|x\))")


@pytest.mark.parametrize("name", [*WHOLE, *PARTS])
def test_the_golden_report(name: str) -> None:
    if name in WHOLE:
        text = rendered(WHOLE[name])
    else:
        text = render_page([each.page for each in told(PARTS[name])])
    path = GOLDEN / f"{name}.md"
    if os.environ.get("UPDATE_GOLDEN") == "1":
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("record", [*FULL.values(), *PARTIAL.values()], ids=[*FULL, *PARTIAL])
def test_every_report_is_whole_short_and_the_same_again(record: Record) -> None:
    text = rendered(record)
    assert find_faults(text) == []
    assert not re.search(r"\b(nan|inf|None(?! of the))\b", text)
    # Several records make one report.
    assert count_open_lines(text) <= MOST_OPEN_LINES / 2
    assert rendered(read_again(record)) == text


def read_again(record: Record) -> Record:
    return from_dict(type(record), json.loads(dumps(record)))


def find_faults(text: str) -> list[str]:
    lines = text.split("\n")
    return [
        *CONTROL.findall(text),
        *re.findall("^# no", text, re.MULTILINE),
        *ACTIVE.findall(CODE.sub("", text)),
        *(
            after
            for before, after in pairwise(lines)
            if before.startswith("|")
            and after.startswith("|")
            and len(CELL_BORDER.findall(before)) != len(CELL_BORDER.findall(after))
        ),
    ]


Place = tuple[str, str]


def places_in(value: Any, at: Place = ("", "")) -> Iterator[Place]:
    """The fields that hold strings, by class and name."""
    if isinstance(value, (str, Mapping)):
        yield at
    if is_dataclass(value):
        for each in fields(value):
            yield from places_in(getattr(value, each.name), (type(value).__name__, each.name))
    elif isinstance(value, (tuple, Mapping)):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from places_in(item, at)


def spoil(value: Any, place: Place, at: Place = ("", "")) -> Any:
    """With the worst string in one field, wherever it occurs."""
    if isinstance(value, str):
        return EVIL if at == place else value
    if isinstance(value, tuple):
        return tuple(spoil(each, place, at) for each in value)
    if isinstance(value, Mapping):
        bad = EVIL if at == place else ""
        return {bad + key: spoil(each, place, at) for key, each in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        names = [each.name for each in fields(value)]
        kind = type(value).__name__
        return replace(
            value, **{name: spoil(getattr(value, name), place, (kind, name)) for name in names}
        )
    return value


@pytest.mark.parametrize(
    "record",
    [
        # With experiments it takes seconds.
        pytest.param(each, marks=[pytest.mark.long] if hasattr(each, "comparisons") else [])
        for each in FULL.values()
    ],
    ids=FULL,
)
def test_no_string_escapes_its_place(record: Record) -> None:
    spoiled = 0
    for place in dict.fromkeys(places_in(record)):
        try:
            evil = read_again(spoil(record, place))
        except ValueError:  # one of a few words: the record is refused
            continue
        spoiled += 1
        assert find_faults(rendered(evil)) == [], place
        if isinstance(evil, BandwidthRecord):
            assert not CONTROL.search(print_table(evil))
    assert spoiled > 10


@pytest.mark.parametrize("record", FULL.values(), ids=FULL)
def test_every_figure_is_sealed(record: Record) -> None:
    (each,) = told(record)
    for svg in each.draw_all().values():
        assert seal.find_fault(svg, fingerprint(record)) == ""
