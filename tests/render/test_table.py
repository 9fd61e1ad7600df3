"""Does a table say what it has, why it lacks the rest, and nothing twice?"""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnose.analyze.units import (
    AS_READ,
    BYTES,
    MILLISECONDS,
    PERCENT,
    TIMES,
    milliseconds,
    number,
    percent,
    scaled,
)
from diagnose.records.header import Reading
from diagnose.records.stats import Interval
from diagnose.render.markdown import Footnotes, Markup, clean, escape, github_warning, prose
from diagnose.render.page import Page, Place, Section, render_page
from diagnose.render.table import (
    Column,
    Doubt,
    code,
    missing,
    pairs,
    share_of,
    table,
    written,
)
from tests.support.records.run import run_record
from tests.support.rendered import count_open_lines

Row = tuple[str, float]
NAME: Column[Row] = Column("name", lambda row: row[0])


def test_numbers_are_written_in_the_unit_of_their_column() -> None:
    columns = [
        NAME,
        Column[Row]("ms", lambda row: Interval(row[1], row[1] * 0.9, row[1] * 1.1), MILLISECONDS),
        Column[Row]("share", lambda row: Reading(0.123), PERCENT),
        Column[Row]("memory", lambda row: 1.5e9, BYTES),
        Column[Row]("gain", lambda row: 2.0, TIMES),
        Column[Row]("runs", lambda row: 7),
    ]
    assert table([("a|b", 0.02)], columns)[0].splitlines()[2] == (
        r"| a\|b | 20.0 [18.0, 22.0] | 12 % | 1.50 GB | 2.000x | 7 |"
    )


def test_an_unknown_cell_is_a_footnote_and_an_unknown_column_a_sentence() -> None:
    rows: list[Row] = [("a", 1.0), ("b", 2.0)]
    columns = [
        NAME,
        Column[Row]("known", lambda row: row[1] if row[0] == "a" else missing("b has none")),
        Column[Row]("watts", lambda row: Reading(None, "no NVML")),
        Column[Row]("joules", lambda row: Reading(None, "no NVML")),
        Column[Row]("remark", lambda row: None),
        Column[Row]("doubtful", lambda row: Doubt("3", "read while idle")),
    ]
    text, notes, hidden = table(rows, columns)
    assert text.splitlines()[0] == "| name | known | doubtful |"
    assert "| b | –² | 3¹ |" in text
    assert notes == "- ¹ read while idle\n- ² b has none"
    assert hidden == "Unknown in every row: watts, joules (no NVML)."


def test_no_rows_are_said_in_words() -> None:
    assert table([], [NAME], "Nothing was measured.") == ["Nothing was measured."]
    assert table([], [NAME]) == []


def test_pairs_and_code() -> None:
    assert "| seed | 7 |" in pairs([("seed", 7)], "run")[0]
    assert code("a[i] |= b") == "`a[i] \\|= b`"
    assert code("x = `y`") == "`` x = `y` ``"
    assert code("``\n\x1b[31my") == "``` `` y ```"


def test_a_reading_keeps_its_unit_and_its_reservation() -> None:
    rows = [("memory", written(Reading(8e9), BYTES)), ("clock", written(Reading(2.5), AS_READ))]
    text, notes = pairs([*rows, ("index", written(Reading(0.0, "guessed"), AS_READ))], "GPU")
    assert "| memory | 8.00 GB |\n| clock | 2.5 |\n| index | 0¹ |" in text
    assert notes == "- ¹ guessed"


def test_memory_in_use_is_a_share_of_all_of_it() -> None:
    unknown = Reading(None, "no such counter")
    rows = [
        ("half", share_of(Reading(40e9), Reading(80e9))),
        ("none", share_of(unknown, Reading(80e9))),
        ("of what", share_of(Reading(40e9), unknown)),
    ]
    text, notes = pairs(rows, "memory")
    assert "| half | 40.0 GB of 80.0 GB (50 %) |\n| none | –¹ |\n| of what | –¹ |" in text
    assert notes == "- ¹ no such counter"


def test_the_sections_of_several_records_are_sorted_into_one_report() -> None:
    header = run_record().header
    first = Page(
        header,
        "a job",
        "Where?",
        "Here.",
        [
            Section(Place.FIRST_SCREEN, "Stages", ["stages"]),
            Section(Place.DETAILS, "Percentiles", ["many\n\nlines"], folded=True),
            Section(Place.LEFT, "Nothing", []),
            Section(Place.TO_DO, "Do", ["- do that"], nothing="Nothing to do."),
        ],
    )
    do_it = Section(Place.TO_DO, "Do", ["- do it"])
    second = Page(header, "a job", "What helps?", "This.", [do_it])
    text = render_page([first, second])
    assert text.startswith("# a job\n\n- Where? **Here.**\n- What helps? **This.**\n\n## Stages")
    assert text.index("## Do") < text.index("<details><summary>Percentiles</summary>\n\nmany")
    assert "## Do\n\n- do that\n- do it\n" in text
    assert "Nothing" not in text
    # Title, answers, two sections and the summary of the fold, with what keeps them apart.
    assert count_open_lines(text) == 15
    idle = replace(first, sections=[Section(Place.TO_DO, "Do", [], nothing="Nothing to do.")])
    assert "## Do\n\nNothing to do.\n" in render_page([idle])


@given(st.lists(st.lists(st.text(), min_size=3, max_size=3), min_size=1, max_size=5))
def test_any_strings_make_a_table_of_the_same_shape(rows: list[list[str]]) -> None:
    columns = [Column[list[str]](f"c{i}", lambda row, i=i: row[i] + "x") for i in range(3)]  # type: ignore[misc]
    (text,) = table(rows, columns)
    lines = text.split("\n")
    assert len(lines) == len(rows) + 2
    assert {len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) for line in lines} == {4}
    assert not any(re.search(r"<|\x1b|[\u202a-\u202e\u2066-\u2069]", line) for line in lines)


@given(st.text())
def test_escaped_text_has_no_bare_special_character(text: str) -> None:
    for safe in (escape(text), escape(escape(text))):
        assert not re.search(r"[<>]", safe)
        rest = re.sub(r"\\[\\`*_\[\]|~$]", "", safe)
        rest = re.sub(r"`[\w ./:=(),+-]+`", "", rest)
        assert not re.search(r"[\\`*_\[\]|~$]", rest)
        assert "\n" not in safe
        safe.encode()
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
        ("use kv_cache, no_sync().", "use `kv_cache`, `no_sync()`."),
        ("needs `run --ddp a_b`, `", r"needs `run --ddp a_b`, \`"),
        ("``x`` `a|b`", r"\`\`x\`\` \`a\|b\`"),
        ("a/b_c.py:12 by --max_x=0.5: NOT_EQUAL", "`a/b_c.py:12` by `--max_x=0.5`: `NOT_EQUAL`"),
        ("@a_b http://e.vil/a_b `a_b", r"@&#8203;a\_b http&#58;//e.vil/a\_b \`a\_b"),
    ],
)
def test_escape(raw: str, safe: str) -> None:
    assert escape(raw) == safe


@pytest.mark.parametrize(
    ("raw", "safe"),
    [
        ("3 [1.5, -2] ms", "3 [1.5, -2] ms"),
        ("[1, 2](x)", r"\[1, 2\](x)"),
        ("[1, 2][3, 4]", r"\[1, 2\][3, 4]"),
        ("[1, 2]: x", r"\[1, 2\]: x"),
    ],
)
def test_intervals_stay_readable_but_links_do_not_come_back(raw: str, safe: str) -> None:
    assert prose(raw) == safe


def test_a_warning_for_github_cannot_be_broken_out_of() -> None:
    assert github_warning("a,b:c%\r\n.py", 41, "100%\n::error::boo") == (
        "::warning file=a%2Cb%3Ac%25%0D%0A.py,line=41::100%25%0A::error::boo"
    )


def test_markup_is_kept_and_a_reason_is_numbered_once() -> None:
    assert table([Markup("[x](y)")], [Column[str]("a", lambda row: row)])[0].endswith("| [x](y) |")
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
        (scaled(29996100, "B"), "30.0 MB"),
        (scaled(999.0, "B"), "999 B"),
    ],
)
def test_numbers_for_readers(text: str, expected: str) -> None:
    assert text == expected


def test_an_interval_can_be_mapped() -> None:
    assert Interval(2.0, 1.0, 4.0).map(lambda value: 4 / value) == Interval(2.0, 1.0, 4.0)
    assert Interval(2.0, None, None).map(lambda value: -value) == Interval(-2.0, None, None)
