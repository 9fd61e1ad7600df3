"""Does the report on batch sizes say what the record holds, on few lines?"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np

from diagnose.analyze.batch_size import judge
from diagnose.records.batch_size import BatchSizeRecord
from diagnose.records.codec import dumps, from_dict
from diagnose.render.batch_size import figures, page, rules_table, sweep_table
from diagnose.render.page import count_open_lines, render_page
from tests.support.records.batch_size import (
    batch_size_record,
    broken,
    configuration,
    loader,
    probe,
)
from tests.support.rendered import rendered, told

GOLDEN = Path(__file__).parent / "golden" / "batch_size.md"
MOST_OPEN_LINES = 40


def golden_record() -> BatchSizeRecord:
    """One configuration that is exact, one that was cut short, one that never began."""
    cut = configuration(
        key="max_crops 12",
        probes=(probe(1), probe(25, fresh=True)),
        stopped="--max-attempts 2 was reached",
        asked=(8, 64),
        loader=loader(250.0),
    )
    lost = configuration(
        key="max_crops 13", status="skipped", reason="no time", probes=(), sweep=None
    )
    return batch_size_record(configuration(key="max_crops 4"), cut, lost)


def test_the_golden_report() -> None:
    text = render_page([page(golden_record())])
    if os.environ.get("UPDATE_GOLDEN") == "1":
        GOLDEN.write_text(text, encoding="utf-8")
    assert text == GOLDEN.read_text(encoding="utf-8")


def test_a_report_is_short_and_the_same_again() -> None:
    for made in (batch_size_record(), golden_record()):
        text = rendered(made)
        assert count_open_lines(text) <= MOST_OPEN_LINES
        assert rendered(from_dict(BatchSizeRecord, json.loads(dumps(made)))) == text


def test_what_was_not_tried_is_not_called_too_large() -> None:
    probes = (probe(1), probe(25, fresh=True))
    cut = configuration(asked=(8, 40, 64), probes=(*probes, probe(50)), stopped="no time")
    assert sweep_table(judge(cut))[-2:] == [
        "Asked for, but too large to fit: 64.",
        "Asked for, but not tried: 40: no time.",
    ]
    hung = configuration(asked=(8, 64), probes=(*probes, broken(26, "hung")))
    assert "not tried: 64: batch 26 hung" in sweep_table(judge(hung))[-1]


def test_rules_of_thumb_are_held_against_what_was_found() -> None:
    (text,) = rules_table(judge(configuration()))
    assert "too large: only 25 fit" in text
    assert "too small: 12.5x as many fit" in text
    cut = configuration(probes=(probe(1), probe(25)), stopped="no time")
    assert "cannot tell: at least 25 fit" in rules_table(judge(cut))[0]


def test_the_figure_depends_on_the_record_alone() -> None:
    (drawn,) = told(batch_size_record())[0].draw_all().values()
    assert drawn == told(batch_size_record())[0].draw_all()["batch_size.svg"]
    assert b"loader" not in drawn
    assert figures(batch_size_record(configuration(sweep=None))) == {}


def test_the_ring_marks_the_batch_to_use_and_no_loader_flattens_the_curve() -> None:
    for rate, use in ((250.0, 4), (50_000.0, 8)):
        made = batch_size_record(configuration(loader=loader(rate)))
        upper = figures(made)["batch_size.svg"]().axes[0]
        rings = [line for line in upper.lines if line.get_markersize() == 12]
        assert [np.asarray(ring.get_xdata()).tolist() for ring in rings] == [[use]]
        assert upper.get_ylim()[1] < 500, "the fastest batch makes 413 samples/s"


def test_a_name_cannot_leave_its_cell() -> None:
    evil = replace(configuration(), key="a|b <script> [x](y)")
    text = rendered(batch_size_record(evil, configuration()))
    assert "<script>" not in text
    assert "a\\|b" in text
