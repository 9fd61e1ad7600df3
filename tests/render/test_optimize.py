"""Does the report on the optimizations say what the record holds, and nothing else?"""

from __future__ import annotations

import re
from dataclasses import replace

from diagnose.analyze.optimize.experiment import judge_all
from diagnose.records.experiments import Comparison
from diagnose.render.optimize import experiments
from diagnose.render.optimize.report import answer, page
from tests.support.records.experiments import (
    compare,
    ended,
    not_claimed,
    optimize_record,
    wrong,
)
from tests.support.rendered import rendered


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


def test_a_change_of_which_one_scope_failed_is_not_called_unmeasured() -> None:
    part = replace(ended("torch_compile", "failed", "it raised"), scope="forward")
    assert "Not measured: torch_compile (forward) (" in said(compare("torch_compile", 1.5), part)
    assert "Not measured: torch_compile (see" in said(part)


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
    assert "`NOT_EQUAL`" in row(text, "`apply_prompt`, as published")


def test_an_undecided_row_says_why_and_an_intended_difference_is_not_called_equal() -> None:
    few = compare("apply_prompt", 2.0, blocks=4)
    rounded = compare("mixed_precision", 1.5, equality=not_claimed())
    text = "\n".join(experiments.before_after(judge_all(optimize_record(few, rounded))))
    assert row(text, "`apply_prompt`")[5] == "INCONCLUSIVE¹"
    assert "- ¹ 4 blocks are too few for an interval" in text
    assert row(text, "`mixed_precision`")[6].startswith("not claimed (outputs by up to 0.004")


def test_the_flags_name_what_failed_and_what_was_not_reached() -> None:
    failed = ended("torch_compile", "failed", "no compiler")
    text = rendered(optimize_record(failed, planned=["torch_compile", "x"], complete=False))
    assert "`torch_compile`, training step: FAILED: no compiler" in text
    assert "not reached: x" in text
