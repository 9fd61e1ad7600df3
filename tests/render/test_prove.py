"""Does a reader see both sides, the verdicts and the lines, and GitHub its warning?"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from diagnose.analyze.prove.proof import prove
from diagnose.records.prove import Window, without_paths
from diagnose.render.prove.report import annotate, outputs, summarize
from tests.support.records.prove import record, runs, suspect, windows
from tests.support.rendered import count_open_lines, rendered

GOLDEN = Path(__file__).parent / "golden" / "prove.md"
VERDICTS = ("FASTER", "SLOWER", "SAME", "INCONCLUSIVE", "EQUAL", "DIVERGES", "CANNOT TELL")


def test_the_golden_report() -> None:
    text = rendered(record())
    if os.environ.get("UPDATE_GOLDEN") == "1":
        GOLDEN.write_text(text, encoding="utf-8")
    assert text == GOLDEN.read_text(encoding="utf-8")
    assert count_open_lines(text) <= 40


@pytest.mark.parametrize(
    ("verdict", "timed"),
    [
        ("FASTER", windows(0.1, 0.05)),
        ("SLOWER", windows(0.1, 0.2)),
        ("SAME", windows(0.1, 0.1)),
        ("INCONCLUSIVE", windows(0.1, 0.05, starts=(0,))),
    ],
)
def test_words_of_verdicts_are_verdicts_only(verdict: str, timed: tuple[Window, ...]) -> None:
    judged = record(windows=timed)
    shown = summarize(prove(judged)) + rendered(judged)
    assert [word for word in VERDICTS if word in shown] == [verdict, "EQUAL"]


def test_a_divergence_shows_both_values() -> None:
    shown = summarize(prove(record(runs=runs((2.0, 1.5, 1.3, 1.0)))))
    assert "| results | loss 1.25 | loss 1.3 | DIVERGES AT STEP 3 |" in shown


def test_github_warns_of_the_edited_line_that_got_slower() -> None:
    slow = replace(record().after, suspects=(suspect(5, 0.15), suspect(9, 0.05)))
    proof = prove(record(after=slow, windows=windows(0.1, 0.2)))
    assert annotate(proof) == [
        "::warning file=train.py,line=5::takes 150 ms per step, before 80.1 ms"
    ]
    assert outputs(proof) == {"speed": "SLOWER", "ratio": "0.5000", "equality": "EQUAL"}
    assert annotate(prove(record())) == []


def test_no_path_of_the_machine_is_kept() -> None:
    before = replace(record().before, title="/home/me/secret/a.py", script="../../me/a.py")
    kept = without_paths(record(before=before))
    assert (kept.before.title, kept.before.script) == ("…/a.py", "…/a.py")
