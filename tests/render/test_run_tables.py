"""Does every table of the report keep its shape, whatever strings and numbers fill it?"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnose.analyze.units import milliseconds, number, percent, scaled
from diagnose.records.header import Fact, Reading
from diagnose.records.run import RunRecord
from diagnose.records.stats import Interval
from diagnose.render.markdown import Footnotes, Markup, clean, escape, prose, table
from tests.support.records.parts import stage
from tests.support.records.run import (
    golden_record,
    loader_stage,
    on_cpu,
    run_record,
    slow_full_model,
    slowed_input,
)
from tests.support.rendered import rendered as render

# Anything a string from outside could try: cells, tags, links, mentions, terminal, direction.
EVIL = "|x|\n# no\n<b>&[a](http://e.vil)![i](x)`c`*_~$1$ @team \x1b[31mred\x1b[0m \u202eabc\u2066\\"
CELL_BORDER = re.compile(r"(?<!\\)(?:\\\\)*\|")


def borders(line: str) -> int:
    return len(CELL_BORDER.findall(line))


@pytest.mark.parametrize("make", [run_record, slow_full_model, slowed_input, on_cpu, golden_record])
def test_every_table_is_whole(make: Callable[[], RunRecord]) -> None:
    text = render(make())
    assert text == render(make())
    lines = text.split("\n")
    for before, after in pairwise(lines):
        if before.startswith("|") and after.startswith("|"):
            assert borders(before) == borders(after)
    assert "nan" not in text.lower().split()
    assert "None" not in text
    assert not re.search(r"<[a-zA-Z/!]", text)


def test_the_first_columns_are_those_of_the_first_report() -> None:
    header = next(line for line in render(run_record()).split("\n") if line.startswith("| stage |"))
    names = [cell.strip() for cell in header.strip("|").split("|")]
    assert names == [
        "stage",
        "ms/iter [95 % interval]",
        "samples/s",
        "GPU power W",
        "remark",
        "J/sample",
        "NVML utilisation",
        "power share (W ÷ limit)",
        "peak memory",
        "% of attainable",
    ]


def test_the_loader_table_has_a_row_per_storage_and_a_column_per_worker_count() -> None:
    stage_result = loader_stage({(0, "mmap"): 30.0, (2, "mmap"): 20.0, (2, "preload"): 10.0})
    text = render(run_record(stage_result))
    assert "| ms/batch | 0 workers | 2 workers |" in text
    assert re.search(
        r"^\| mmap \| (?:29|30)\.\S+ \[.*\] \| (?:19|20)\.\S+ \[.*\] \|$", text, re.MULTILINE
    )
    assert re.search(r"^\| preload \| –¹ \| (?:9|10)\.\S+ \[.*\] \|$", text, re.MULTILINE)


def test_the_topology_is_a_square() -> None:
    text = render(run_record(gpus=2))
    assert "| GPU 0 | X | SYS, –¹ |" in text
    assert "| GPU 1 | SYS, –¹ | X |" in text


def evil_record() -> RunRecord:
    record = run_record(gpus=2)
    evil = Fact(EVIL)
    where = replace(
        record.header.machine,
        device_name=EVIL,
        system=EVIL,
        cpu_model=evil,
        cpu_governor=Fact(None, EVIL),
        versions={EVIL: evil},
        environment={EVIL: EVIL},
        gpus=tuple(replace(each, name=EVIL, ecc=evil) for each in record.header.machine.gpus),
    )
    workload = replace(record.workload, name=EVIL, size=EVIL, settings={EVIL: EVIL})
    assert workload.data is not None
    workload = replace(workload, data=replace(workload.data, description=EVIL))
    stages = [
        replace(
            each,
            title=EVIL,
            notes=(EVIL,),
            measurements=tuple(
                replace(m, name=EVIL, peak_bytes=Reading(None, EVIL)) for m in each.measurements
            ),
        )
        for each in record.stages
    ]
    stages[3] = stage("precision", status="failed", reason=EVIL, notes=(EVIL,))
    return replace(
        record,
        header=replace(record.header, label=EVIL, created=EVIL, machine=where),
        workload=workload,
        stages=tuple(stages),
    )


def test_no_string_escapes_its_place() -> None:
    text = render(evil_record())
    plain = render(run_record(gpus=2))
    assert re.findall(r"^#+ ", text, re.MULTILINE) == re.findall(r"^#+ ", plain, re.MULTILINE)
    assert not re.search(r"<[a-zA-Z/!]", text)
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "@team" not in text
    assert "http://" not in text
    links = re.findall(r"(?<!\\)\]\(([^)]*)\)", text)
    assert links == ["stages.svg", "loader.svg", "power.svg"]
    for line in text.split("\n"):
        if line.startswith("|"):
            assert line.endswith("|")


@given(st.lists(st.lists(st.text(), min_size=3, max_size=3), max_size=5))
def test_any_strings_make_a_table_of_the_same_shape(rows: list[list[str]]) -> None:
    lines = table(["a", "b", "c"], rows).split("\n")
    assert len(lines) == len(rows) + 2
    assert {borders(line) for line in lines} == {4}
    assert not any(re.search(r"<|\x1b|[\u202a-\u202e\u2066-\u2069]", line) for line in lines)


@given(st.text())
def test_escaped_text_has_no_bare_special_character(text: str) -> None:
    for safe in (escape(text), escape(escape(text))):
        assert not re.search(r"[<>]", safe)
        rest = re.sub(r"\\[\\`*_\[\]|~$]", "", safe)
        assert not re.search(r"[\\`*_\[\]|~$]", rest)
        assert "\n" not in safe
        safe.encode()


@given(st.text())
def test_cleaning_twice_changes_nothing(text: str) -> None:
    assert clean(clean(text)) == clean(text)


@pytest.mark.parametrize(
    ("raw", "safe"),
    [
        ("a|b", r"a\|b"),
        ("<script>", "&lt;script&gt;"),
        ("[x](y)", r"\[x\](y)"),
        ("a\r\nb\tc", "a b c"),
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07text", "text"),
        ("x\u202ey\u200bz\x00", "xyz"),
        ("https://e.vil www.e.vil", "https&#58;//e.vil www&#46;e.vil"),
        ("2.2 @ 3 GHz @me", "2.2 @ 3 GHz @&#8203;me"),
    ],
)
def test_escape(raw: str, safe: str) -> None:
    assert escape(raw) == safe


def test_intervals_stay_readable_but_links_do_not_come_back() -> None:
    assert prose("3 [1.5, -2] ms") == "3 [1.5, -2] ms"
    assert prose("[1, 2](x)") == r"\[1, 2\](x)"
    assert prose("[1, 2][3, 4]") == r"\[1, 2\][3, 4]"
    assert prose("[1, 2]: x") == r"\[1, 2\]: x"


def test_a_table_refuses_rows_of_another_length() -> None:
    with pytest.raises(ValueError, match="2 headers but 1 cells"):
        table(["a", "b"], [["only"]])
    with pytest.raises(ValueError, match="2 headers but 1 alignments"):
        table(["a", "b"], [], ["left"])
    assert table(["a"], [[Markup("[x](y)")]]).endswith("| [x](y) |")


def test_a_reason_is_numbered_once() -> None:
    notes = Footnotes()
    marks = [notes.missing(reason) for reason in ("one", "two", "one", "")]
    assert marks == ["–¹", "–²", "–¹", "–³"]
    assert notes.lines() == ["- ¹ one", "- ² two", "- ³ no reason was recorded"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (milliseconds(Interval(0.1903, 0.1889, 0.1917)), "190.3 [188.9, 191.7]"),
        (milliseconds(Interval(0.0004, -0.0003, 0.0011)), "0.40 [-0.30, 1.10]"),
        (milliseconds(Interval(0.0004, None, None)), "0.4000 (no interval)"),
        (milliseconds(Interval(0.1, 0.1, 0.1)), "100.000 [100.000, 100.000]"),
        (number(0), "0"),
        (number(12345.6), "12346"),
        (number(-0.00001), "0.0000"),
        (percent(0.634), "63 %"),
        (percent(0.034), "3.4 %"),
        (percent(-0.0001), "0.0 %"),
        (scaled(25.8e9, "B"), "25.8 GB"),
        (scaled(999.0, "B"), "999 B"),
    ],
)
def test_numbers_for_readers(text: str, expected: str) -> None:
    assert text == expected
