"""Does the report on the optimizations say what the record holds, and nothing else?"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from diagnose.analyze.optimize.experiment import judge_all
from diagnose.records import codec
from diagnose.records.experiments import Comparison, OptimizeRecord
from diagnose.render.optimize import experiments
from diagnose.render.optimize.report import answer, page
from diagnose.render.page import count_open_lines, render_page
from tests.support.records.experiments import (
    compare,
    ended,
    launch_map,
    not_claimed,
    optimize_record,
    whole_catalogue,
    wrong,
)
from tests.support.records.generation import whole_generation
from tests.support.records.series import whole_series
from tests.support.rendered import rendered

GOLDEN = Path(__file__).parent / "golden"
# Of this part alone, so that a report of several parts stays readable.
MOST_OPEN_LINES = 60
# Anything a string from outside could try: cells, tags, links, mentions, terminal, direction.
EVIL = "|x|\n# no\n<b>&[a](http://e.vil)![i](x)`c`*_~$1$ @team \x1b[31mred\x1b[0m \u202eabc\\"
CELL_BORDER = re.compile(r"(?<!\\)(?:\\\\)*\|")


def on_gpu() -> OptimizeRecord:
    return whole_catalogue(gpus=1)


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("optimize", on_gpu),
        ("optimize_ladder", whole_series),
        ("optimize_evaluation", lambda: whole_generation(samples=3200)),
    ],
)
def test_the_golden_report(name: str, make: Callable[[], OptimizeRecord]) -> None:
    # Without what every report closes with, which has a golden report of its own.
    text, path = render_page([page(make())]), GOLDEN / f"{name}.md"
    if os.environ.get("UPDATE_GOLDEN") == "1":
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")
    assert count_open_lines(text) <= MOST_OPEN_LINES
    again = codec.from_dict(OptimizeRecord, json.loads(codec.dumps(make())))
    assert render_page([page(again)]) == text


def evil_record() -> OptimizeRecord:
    bad = replace(
        compare("apply_prompt", 1.5, facts={EVIL: EVIL}, notes=[EVIL]),
        key=EVIL,
        title=EVIL,
        scope=EVIL,
        before_text=EVIL,
        after_text=EVIL,
        curves={EVIL: (1.0,), f"{EVIL} 2": (0.0,)},
    )
    published = replace(wrong("gated_fusion"), after_text=EVIL)
    assert published.equality is not None
    checks = tuple(replace(each, name=EVIL, remark=EVIL) for each in published.equality.checks)
    published = replace(published, equality=replace(published.equality, checks=checks))
    failed = ended("torch_compile", "failed", EVIL)
    lost = replace(bad, status="failed", reason=EVIL, before=None)
    plan = replace(bad, facts={"parts": EVIL, "left_out": EVIL})
    model = replace(bad, facts={"changes_model": True})
    lines = [replace(each, file=EVIL, function=EVIL, code=EVIL) for each in launch_map().lines]
    maps = [replace(launch_map(), lines=tuple(lines), notes=(EVIL,))]
    record = optimize_record(bad, plan, model, published, failed, maps=maps, planned=[EVIL])
    return replace(
        record,
        header=replace(record.header, label=EVIL, created=EVIL),
        workload=replace(record.workload, name=EVIL, settings={EVIL: EVIL}),
        rungs=(bad, lost),
    )


@pytest.mark.parametrize(
    "record",
    [
        whole_catalogue(),
        optimize_record(),
        optimize_record(*whole_catalogue().comparisons[:3], planned=["apply_prompt", "x"]),
        evil_record(),
    ],
    ids=["cpu", "empty", "unfinished", "evil"],
)
def test_every_report_is_whole(record: OptimizeRecord) -> None:
    text = rendered(record)
    for before, after in pairwise(text.split("\n")):
        if before.startswith("|") and after.startswith("|"):
            assert len(CELL_BORDER.findall(before)) == len(CELL_BORDER.findall(after))
    assert "None" not in text
    assert "nan" not in text.lower().split()
    assert "\x1b" not in text
    assert "\u202e" not in text
    # Code stands in backticks or a fence, where nothing of it acts.
    outside = re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "", text, flags=re.DOTALL)
    assert not re.search(r"<(?!/?details|/?summary)[a-zA-Z/!]", outside)
    assert "@team" not in outside
    assert not re.search(r"(?<!\\)\]\(http", outside)


def said(*comparisons: Comparison, complete: bool = True) -> str:
    record = optimize_record(*comparisons, complete=complete)
    return answer(record, judge_all(record))


def test_the_answer_names_the_gain_the_wrong_forms_and_the_whole() -> None:
    text = said(
        compare("dynamic_mask", 9.0, 0.005, "mask"),
        compare("apply_prompt", 1.6),
        compare("gated_fusion", 1.3),
        wrong("apply_prompt"),
        compare("all_together", 2.3),
    )
    # Nine times on a part of a step is less than 1.6 times on the whole of it.
    assert re.search(r"single change is apply_prompt: 1\.60\d+ \[.*\]x per training step", text)
    assert "wrong as published: apply_prompt" in text
    assert re.search(r"all changes together: 2\.30\d+ \[.*\]x, FASTER", text)


def test_the_answer_claims_nothing_that_is_not_proven() -> None:
    text = said(
        compare("apply_prompt", 1.0),
        compare("gated_fusion", 3.0, blocks=5),
        wrong("dynamic_mask", "after"),
        ended("torch_compile", "failed", "it raised"),
        wrong("all_together", "after"),
        complete=False,
    )
    assert text.startswith("No single change is proven to be faster; ")
    assert "not equal: dynamic_mask, all_together" in text
    assert "all changes together: NOT_EQUAL" in text
    assert "Not measured: torch_compile" in text
    assert text.endswith("The run was not finished.")


def row(text: str, start: str) -> list[str]:
    """The cells of the first table row that starts so."""
    found = next(line for line in text.split("\n") if line.startswith(f"| {start}"))
    return [cell.strip() for cell in found.strip("|").split(" | ")]


def test_unequal_results_show_no_time_at_all() -> None:
    timed_anyway = replace(
        compare("apply_prompt", 3.0, 0.777, form="as published"), equality=wrong("x").equality
    )
    text = "\n".join(
        block for each in page(optimize_record(timed_anyway)).sections for block in each.blocks
    )
    for number in ("777", "259", "3.0"):
        assert number not in text
    assert "no (outputs by up to 3.2, allowed 1e-05; 15 of 16 samples differ)" in text
    assert "NOT\\_EQUAL" in row(text, "apply\\_prompt, as published")


def test_an_undecided_row_says_why_and_an_intended_difference_is_not_called_equal() -> None:
    few = compare("apply_prompt", 2.0, blocks=4)
    rounded = compare("mixed_precision", 1.5, equality=not_claimed())
    text = "\n".join(experiments.before_after(judge_all(optimize_record(few, rounded))))
    assert row(text, "apply\\_prompt")[5] == "INCONCLUSIVE¹"
    assert "- ¹ 4 blocks are too few for an interval" in text
    assert row(text, "mixed\\_precision")[6].startswith("not claimed (outputs by up to 0.004")


def test_the_flags_name_what_failed_and_what_was_not_reached() -> None:
    failed = ended("torch_compile", "failed", "no compiler")
    text = rendered(optimize_record(failed, planned=["torch_compile", "x"], complete=False))
    assert "torch\\_compile, training step: FAILED: no compiler" in text
    assert "not reached: x" in text
