"""Does the report of a script say what its record holds, and is it re-judged without torch?"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from diagnose.analyze.script.rules import diagnose
from diagnose.records.header import Reading
from diagnose.records.script import (
    PLAIN,
    Ceilings,
    Occasion,
    ScriptRecord,
    Site,
    TriedOption,
    Window,
)
from diagnose.render import store
from diagnose.render.script.report import FIGURE_NAME, figures, page
from diagnose.render.script.terminal import WIDTH, join, layout
from tests.support.records.script import change, golden_record, record, suspect
from tests.support.rendered import count_open_lines, rendered, told

GOLDEN = Path(__file__).parent / "golden" / "script.md"
MOST_OPEN_LINES = 60


def test_the_golden_report() -> None:
    text = rendered(golden_record())
    if os.environ.get("UPDATE_GOLDEN") == "1":
        GOLDEN.write_text(text, encoding="utf-8")
    assert text == GOLDEN.read_text(encoding="utf-8")
    assert count_open_lines(text) <= MOST_OPEN_LINES
    (each,) = told(golden_record())
    assert each.draw_all() == each.draw_all()
    assert list(each.draw_all()) == [FIGURE_NAME]


def told_lines(found: ScriptRecord) -> list[str]:
    return join(layout(diagnose(found))).splitlines()


def test_the_terminal_says_the_same_in_lines() -> None:
    lines = told_lines(golden_record())
    assert lines[0].startswith("diagnose: train.py · 100 ms per step [100, 100] · 200 steps in ")
    heads = [each for each in lines if each.endswith((" tried", " estimated"))]
    assert len({each.index("saves") for each in heads}) == 1
    assert [each.split()[2] for each in heads] == ["input", "launch"]
    assert max(map(len, lines)) <= WIDTH
    text = " ".join(" ".join(lines).split())
    assert "Undecided: batch: the script failed with MemoryError: full" in text
    assert "After both fixes: " in text
    assert lines[-2] == " Measuring overhead: 0.0 % of an unmodified step."


def test_a_cause_of_the_whole_script_has_no_line() -> None:
    windows = tuple(each for each in golden_record().windows if each.variant != "fused")
    tried = change("precision", variant="replayed batches", site=None)
    found = record(changes=(tried,), windows=windows)
    text = "\n".join(told_lines(found)) + rendered(found)
    assert re.search(r"precision +whole step +saves ", text)
    assert "| precision | `whole step` |" in text
    assert "train.py:0" not in text


def test_options_and_unknown_numbers_stand_below_the_causes() -> None:
    ceilings = Ceilings(1e11, 5e10, 4e11, 1e10)
    found = replace(golden_record(), ceilings=ceilings, samples=Reading(None, "no tensor"))
    text = "\n".join(told_lines(found))
    proof = "Changes the numbers, not tried: diagnose prove train.py --with autocast "
    assert text.index("  launch ") < text.index(proof)
    assert " Unknown: samples per second (no tensor)" in text
    assert "device busy" not in text  # on the CPU there is nothing else to be busy
    machine = replace(found.header.machine, device="cuda")
    elsewhere = replace(found, header=replace(found.header, machine=machine))
    assert " Unknown: device busy share (not recorded)" in told_lines(elsewhere)
    report = rendered(found)
    assert report.index("## What to do") < report.index("## Options, not tried")
    assert "- autocast to bfloat16 was not tried: " in report
    assert "Options" not in rendered(replace(golden_record(), ceilings=None))


def test_an_option_that_was_tried_is_told_with_its_verdict() -> None:
    tried = TriedOption("compile", "SAME: it runs at 1.00x.", "SAME", 1.0, (0.98, 1.02), "EQUAL")
    found = replace(golden_record(), tried_options=(tried,))
    told = " Changes the numbers, tried beside the script: SAME: it runs at 1.00x."
    assert told in told_lines(found)
    report = rendered(found)
    assert "## Options\n" in report
    assert "was tried beside the script: SAME: it runs at 1.00x. " in report
    assert "not tried" not in report


def test_nothing_measured_has_no_figure_and_a_reason() -> None:
    empty = record(step_seconds=(), sampled_steps=0, steps=0, missing="the script ended")
    assert not figures(empty)
    assert page(empty).answer == "No diagnosis: the script ended."
    assert rendered(empty)


@pytest.mark.parametrize(
    "damage",
    [
        {"step_seconds": (0.1, 0.0)},
        {"windows": (Window(0, PLAIN, 0, 1.0),)},
        {"windows": (Window(0, PLAIN, 1, -1.0),)},
        {"occasions": (Occasion("logging", "log", "", 0, (), ()),)},
        {"changes": (change("batch", samples=0.0),)},
    ],
)
def test_what_cannot_have_been_measured_is_refused(tmp_path: Path, damage: dict[str, Any]) -> None:
    path = store.save(record(**damage), tmp_path)
    with pytest.raises(store.StoreError, match="damaged"):
        store.load(path, ScriptRecord)


@pytest.mark.parametrize("text", ["a|b", "<script>", "`x` @team", "![i](x)"])
def test_code_of_the_user_is_escaped(text: str) -> None:
    site = Site(f"{text}.py", 3, text, text)
    report = rendered(record(suspects=(suspect(site=site),)))
    assert "<script>" not in report.replace("`<script>.py:3`", "").replace("`<script>`", "")
    for line in report.splitlines():
        assert not line.startswith("|") or line.endswith("|")
