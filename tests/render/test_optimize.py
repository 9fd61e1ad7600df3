"""Does the report on the optimisations say what the record holds, and nothing else?"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import pairwise

import pytest

from diagnose.analyze.optimize import effects as experiment_effects
from diagnose.analyze.optimize.experiment import judge_all
from diagnose.records import codec
from diagnose.records.experiments import Comparison, OptimizeRecord
from diagnose.records.header import Reading
from diagnose.render.optimize import experiments as experiment_tables
from diagnose.render.optimize.report import answer, render_optimize
from tests.support.records.experiments import (
    compare,
    ended,
    launch_map,
    not_claimed,
    optimize_record,
    whole_catalogue,
    wrong,
)

SECTIONS = [
    "## Which line",
    "## Before and after",
    "## Where the effect sits",
    "## All together",
    "## What is left to gain",
    "## Excluded factors",
    "## Flags",
    "## Behind the verdicts",
    "## Data",
    "## Machine",
    "## How it was measured",
]
# A workload of the user's own: nothing was published about it.
OWN_SECTIONS = [
    "## Which line",
    "## Before and after",
    "## The ladder",
    "## Compute density",
    "## Loss at equal samples",
    "## Flags",
    "## Behind the verdicts",
    "## Data",
    "## Machine",
    "## How it was measured",
]
# Anything a string from outside could try: cells, tags, links, mentions, terminal, direction.
EVIL = "|x|\n# no\n<b>&[a](http://e.vil)![i](x)`c`*_~$1$ @team \x1b[31mred\x1b[0m \u202eabc\\"
CELL_BORDER = re.compile(r"(?<!\\)(?:\\\\)*\|")


def tell(*comparisons: Comparison, complete: bool = True) -> str:
    record = optimize_record(*comparisons, complete=complete)
    return answer(record, judge_all(record))


def row(text: str, start: str) -> list[str]:
    """The cells of the first table row that starts so."""
    found = next(line for line in text.split("\n") if line.startswith(f"| {start}"))
    return [cell.strip() for cell in found.strip("|").split(" | ")]


def evil_record() -> OptimizeRecord:
    bad = replace(
        compare("apply_prompt", 1.5, facts={EVIL: EVIL}, notes=[EVIL]),
        key=EVIL,
        title=EVIL,
        scope=EVIL,
        after_text=EVIL,
    )
    published = replace(wrong("gated_fusion"), after_text=EVIL)
    assert published.equality is not None
    checks = tuple(replace(each, name=EVIL, remark=EVIL) for each in published.equality.checks)
    published = replace(published, equality=replace(published.equality, checks=checks))
    failed = ended("torch_compile", "failed", EVIL)
    lost = replace(bad, status="failed", reason=EVIL, before=None)
    diverse = replace(bad, curves={EVIL: (1.0,), f"{EVIL} 2": (0.0,)})
    model = replace(bad, facts={"changes_model": True}, before_text=EVIL)
    comparisons = (diverse, model, published, failed)
    record = optimize_record(*comparisons, maps=[launch_map()], planned=[EVIL])
    workload = replace(record.workload, name=EVIL, settings={EVIL: EVIL})
    return replace(
        record,
        header=replace(record.header, label=EVIL, created=EVIL),
        workload=workload,
        rungs=(bad, lost),
    )


@pytest.mark.parametrize(
    "record",
    [
        whole_catalogue(),
        whole_catalogue(gpus=1),
        optimize_record(),
        optimize_record(*whole_catalogue().comparisons[:3], planned=["apply_prompt", "x"]),
        evil_record(),
    ],
    ids=["cpu", "gpu", "empty", "unfinished", "evil"],
)
def test_every_report_is_whole(record: OptimizeRecord) -> None:
    text = render_optimize(record)
    assert text == render_optimize(record)
    expected = SECTIONS if record.workload.name == "dgca" else OWN_SECTIONS
    assert [line for line in text.split("\n") if line.startswith("## ")] == expected
    for before, after in pairwise(text.split("\n")):
        if before.startswith("|") and after.startswith("|"):
            assert len(CELL_BORDER.findall(before)) == len(CELL_BORDER.findall(after))
    assert "None" not in text
    assert "nan" not in text.lower().split()
    assert not re.search(r"<[a-zA-Z/!]", text)
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "@team" not in text


def test_a_record_renders_alike_after_its_way_through_the_file() -> None:
    record = whole_catalogue(gpus=1)
    read_back = codec.from_dict(OptimizeRecord, json.loads(codec.dumps(record)))
    assert render_optimize(read_back) == render_optimize(record)


def test_the_answer_names_the_gain_the_wrong_forms_and_the_whole() -> None:
    text = tell(
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
    text = tell(
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


def test_the_columns_of_the_before_after_table() -> None:
    text = "\n".join(experiment_tables.before_after(judge_all(whole_catalogue(gpus=1))))
    header = row(text, "optimisation")
    assert header == [
        "optimisation",
        "scope",
        "before ms",
        "after ms",
        "speed-up [95 % interval]",
        "verdict",
        "equal results?",
        "peak memory",
        "energy per sample",
        "detectable ≥",
        "blocks",
    ]
    cells = dict(zip(header, row(text, "apply\\_prompt: "), strict=True))
    assert cells["before ms"].startswith("500")
    assert cells["after ms"].startswith("312")
    assert cells["speed-up [95 % interval]"].startswith("1.60")
    assert cells["verdict"] == "FASTER"
    assert cells["equal results?"] == "yes (outputs: worst 2.0e-07, allowed 1e-05)"
    assert cells["peak memory"] == "-1.00 GB"
    # 320 W instead of 200 W for 1 / 1.6 of the time is as much energy.
    assert cells["energy per sample"] in ("0.0 %", "-0.1 %", "+0.1 %")
    assert cells["blocks"] == "14"


def test_forward_and_whole_step_stand_apart_and_the_published_form_follows() -> None:
    record = optimize_record(
        wrong("gated_fusion", scope="forward / training step"),
        compare("gated_fusion", 1.3, scope="forward"),
        compare("gated_fusion", 1.2),
        compare("dataset_clone", 2.0, 0.005, "batch"),
    )
    blocks = experiment_tables.before_after(judge_all(record))
    titles = [each for each in blocks if each.startswith("###")]
    assert titles == [
        "### Full training step",
        "### Forward pass only",
        "### Input pipeline and other parts",
    ]
    step = blocks[blocks.index(titles[0]) + 1].split("\n")
    assert step[2].startswith("| gated\\_fusion: ")
    assert step[3].startswith("| gated\\_fusion, as published: ")
    forward = blocks[blocks.index(titles[1]) + 1].split("\n")
    assert len(forward) == 3


def test_unequal_results_show_no_time_at_all() -> None:
    timed_anyway = replace(
        compare("apply_prompt", 3.0, 0.777, form="as published"), equality=wrong("x").equality
    )
    text = render_optimize(optimize_record(timed_anyway))
    table = text[text.index("## Before and after") : text.index("## Flags")]
    assert "777" not in table
    assert "259" not in table
    assert "3.0" not in table
    assert "no (outputs: worst 3.2e+00, allowed 1e-05; 15 of 16 samples differ)" in table
    assert row(table, "apply\\_prompt, as published")[5] == "NOT\\_EQUAL"


def test_an_undecided_row_says_why_below_the_table() -> None:
    text = "\n".join(experiment_tables.before_after(judge_all(optimize_record(few()))))
    assert row(text, "apply\\_prompt")[5] == "INCONCLUSIVE ¹"
    assert "- ¹ 4 blocks are too few for an interval" in text


def few() -> Comparison:
    return compare("apply_prompt", 2.0, blocks=4)


def test_results_that_are_meant_to_differ_are_not_called_equal() -> None:
    record = optimize_record(compare("mixed_precision", 1.5, equality=not_claimed()))
    text = "\n".join(experiment_tables.before_after(judge_all(record)))
    assert row(text, "mixed\\_precision")[6].startswith("not claimed (outputs: worst 4.0e-03")


@pytest.mark.parametrize(
    ("forward_ratio", "where"), [(1.05, "94 % backward"), (5.0, "96 % forward")]
)
def test_where_an_effect_sits(forward_ratio: float, where: str) -> None:
    record = optimize_record(
        compare("apply_prompt", forward_ratio, 0.1, "forward"), compare("apply_prompt", 1.2, 0.5)
    )
    (text,) = experiment_effects.locations(judge_all(record))
    share, place = where.split(" % ")
    assert f"{share} % of the effect sits in the {place} pass" in text


def test_an_effect_that_is_not_proven_sits_nowhere() -> None:
    record = optimize_record(
        compare("apply_prompt", 1.2, 0.1, "forward"), compare("apply_prompt", 1.0, 0.5)
    )
    (text,) = experiment_effects.locations(judge_all(record))
    assert "not proven" in text
    (nothing,) = experiment_effects.locations(judge_all(optimize_record()))
    assert nothing.startswith("No change was measured both")


def test_the_table_of_the_first_report() -> None:
    blocks = experiment_effects.first_report_table(judge_all(whole_catalogue(gpus=1)))
    assert row(blocks[0], "指标")[1:4] == ["优化前 before", "优化后 after", "提升 gain"]
    speed = row(blocks[0], "训练速度")
    assert speed[1].startswith("1.99") or speed[1].startswith("2.00")
    assert speed[2].startswith("4.6")
    assert speed[3].endswith("x, FASTER")
    assert row(blocks[0], "GPU功率")[1:4] == ["200", "320", "+60 %"]
    assert row(blocks[0], "利用率估算")[1:4] == ["44 %", "71 %", "+27 points"]


def test_the_table_of_the_first_report_says_why_there_are_no_watts() -> None:
    blocks = experiment_effects.first_report_table(judge_all(whole_catalogue()))
    assert row(blocks[0], "GPU功率")[1:4] == ["–¹", "–¹", "–¹"]
    assert blocks[1] == "- ¹ this machine has no NVIDIA GPU"


def test_all_together_without_equal_results_has_no_table() -> None:
    record = optimize_record(wrong("all_together", "after"))
    (text,) = experiment_effects.first_report_table(judge_all(record))
    assert text.startswith("All changes together: NOT\\_EQUAL. outputs, loss differ")
    (missing,) = experiment_effects.first_report_table([])
    assert missing == "All changes together were not measured."


def test_excluded_factors_are_tried_again() -> None:
    step = compare("all_together", 2.0, 0.5)
    record = optimize_record(
        compare("dataset_preload", 1.0, 0.005, "batch"),
        compare("loader_workers", 2.0, 0.4, "batch"),
        compare("dataset_clone", 2.0, 0.005, "batch"),
        compare("loader_persistent", 1.5, 1.0, "epoch"),
        ended("loader_prefetch", "failed", "the worker died"),
        step,
    )
    (text,) = experiment_effects.excluded_factors(judge_all(record))
    assert row(text, "mmap I/O")[-2:] == ["SAME", "excluded: it changes nothing"]
    assert row(text, "number of workers")[-1].startswith(
        "not excluded: faster per batch, up to 79.9"
    )
    loading = [line for line in text.split("\n") if line.startswith("| data loading")]
    assert "excluded: it moves a step by 1.0" in loading[0]
    assert "not excluded: faster per epoch" in loading[1]
    assert "cannot tell: the worker died" in loading[2]
    (nothing,) = experiment_effects.excluded_factors([])
    assert nothing.count("not measured here") == 3


def test_flags_tell_what_failed_and_what_disturbed() -> None:
    made = compare("gated_fusion", 1.3)
    assert made.before is not None
    clock = replace(made.before.timing, unmet="interval ±3 %, wanted ±1 %")
    record = optimize_record(
        replace(made, before=replace(made.before, timing=clock)),
        ended("torch_compile", "failed", "no compiler"),
        planned=["gated_fusion", "torch_compile", "all_together"],
        complete=False,
    )
    busy = replace(record.header.machine, cpu_busy_before=Reading(0.4))
    text = render_optimize(replace(record, header=replace(record.header, machine=busy)))
    section = text[text.index("## Flags") : text.index("## Behind")]
    assert "- **torch\\_compile, training step: FAILED.** no compiler" in section
    assert "Not reached: all\\_together." in section
    assert "gated\\_fusion, training step (before): interval ±3 %, wanted ±1 %" in section
    assert "other work kept 40 % of the processors busy" in section
    quiet = render_optimize(optimize_record(made))
    assert "Nothing disturbed the run." in quiet


def test_facts_are_told_with_their_units() -> None:
    facts = {"compile_seconds": 20.5, "saved_bytes": 1.4e9, "graph_breaks": 3, "fused": True}
    made = compare("torch_compile", 1.2, facts=facts, notes=["dynamic shapes were off"])
    forward = compare("torch_compile", 1.2, 0.1, "forward", facts=facts, notes=made.notes)
    whole = compare("all_together", 2.0, facts={"reached_share": 0.87, **facts})
    (text,) = experiment_tables.facts(judge_all(optimize_record(made, forward, whole)))
    told = "compile 20.50 s; saved 1.40 GB; graph breaks 3; fused yes"
    assert text.split("\n") == [
        # The forward pass of the same change has nothing to add.
        f"- torch\\_compile, training step: {told}; dynamic shapes were off",
        f"- all\\_together, training step: reached 87 %; {told}",
    ]


def test_a_change_that_ended_early_is_found_under_each_of_its_scopes() -> None:
    skipped = replace(
        ended("all_together", "skipped", "no memory"), scope="forward / training step"
    )
    record = optimize_record(skipped)
    (text,) = experiment_effects.first_report_table(judge_all(record))
    assert text == "All changes together: SKIPPED. no memory."


def test_a_report_from_no_real_device_says_so() -> None:
    record = replace(
        whole_catalogue(), header=replace(whole_catalogue().header, source="stub", effort="smoke")
    )
    text = render_optimize(record)
    assert "**This is no result: it was measured on a stub" in text
    assert "**This is no result: a smoke run" in text
