"""Does a table say what it has, why it lacks the rest, and nothing twice?"""

from __future__ import annotations

from diagnose.analyze.units import BYTES, MILLISECONDS, PERCENT, TIMES
from diagnose.records.header import Reading
from diagnose.records.stats import Interval
from diagnose.render.page import Page, Place, Section, count_open_lines, render_page
from diagnose.render.table import Column, Doubt, code, missing, pairs, table
from tests.support.records.run import run_record

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
        ],
    )
    second = Page(header, "a job", "What helps?", "This.", [Section(Place.TO_DO, "Do", ["do it"])])
    text = render_page([first, second])
    assert text.startswith("# a job\n\n- Where? **Here.**\n- What helps? **This.**\n\n## Stages")
    assert text.index("## Do") < text.index("<details><summary>Percentiles</summary>\n\nmany")
    assert "Nothing" not in text
    assert count_open_lines(text) == 7
