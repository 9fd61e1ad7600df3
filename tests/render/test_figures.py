"""Are the figures the record's own, and the same bytes every time?"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import matplotlib as mpl
import pytest

from diagnose.analyze import derive
from diagnose.records import codec
from diagnose.records.run import RunRecord
from diagnose.render import seal
from diagnose.render.figures import draw
from diagnose.render.run.figures import draw_power
from tests.support.records.run import (
    on_cpu,
    pair,
    power_trace,
    run_record,
    slow_full_model,
    slowed_input,
    stage,
)
from tests.support.rendered import told


def figures(record: RunRecord) -> Mapping[str, bytes]:
    (each,) = told(record)
    return each.draw_all()


def texts_of(record: RunRecord, name: str) -> list[str]:
    return texts(draw(told(record)[0].part.figures(record)[name], "0" * 64))


def texts(svg: bytes) -> list[str]:
    root = ElementTree.fromstring(svg)
    return ["".join(each.itertext()).strip() for each in root.iter() if each.tag.endswith("}text")]


def test_the_same_record_gives_the_same_bytes() -> None:
    first = figures(slow_full_model())
    with mpl.rc_context({"font.size": 23, "svg.hashsalt": "other", "axes.grid": True}):
        second = figures(slow_full_model())
    assert first == second


@pytest.mark.parametrize(
    ("record", "names"),
    [
        (run_record(), ["stages.svg", "loader.svg", "power.svg"]),
        (on_cpu(), ["stages.svg", "loader.svg"]),
        (run_record(without=["loader"]), ["stages.svg", "power.svg"]),
        (replace(run_record(), stages=()), []),
    ],
)
def test_a_record_has_the_figures_that_it_supports(record: RunRecord, names: list[str]) -> None:
    assert list(figures(record)) == names


def test_the_fingerprint_survives_the_file() -> None:
    whole = replace(run_record(), stages=(replace(run_record().stages[0], seconds=2),))
    back = codec.from_dict(RunRecord, json.loads(codec.dumps(whole)))
    assert codec.dumps(back) != codec.dumps(whole)  # 2 was read back as 2.0
    assert derive.fingerprint(back) == derive.fingerprint(whole)


def test_the_stages_stand_in_order_with_their_numbers() -> None:
    words = texts_of(slow_full_model(), "stages.svg")
    titles = [word for word in words if word in {each.title for each in slow_full_model().stages}]
    assert titles == [each.title for each in slow_full_model().stages if each.key != "ceilings"]
    assert any(re.fullmatch(r"579\.\d ms|580\.\d ms", word) for word in words)


def test_a_step_of_another_batch_size_is_not_drawn_beside_the_others() -> None:
    capped = pair("precision", 0.5, 0.1, 350, batch_size=8)
    few = tuple(replace(each, samples_per_step=8) for each in capped.measurements)
    words = texts_of(run_record(replace(capped, measurements=few)), "stages.svg")
    (said,) = [word for word in words if "not to scale" in word]
    assert re.fullmatch(r"\d+\.\d ms at batch 8, not to scale", said)


def test_a_failed_stage_keeps_its_place_and_a_skipped_one_has_none() -> None:
    failed = stage("precision", status="failed", reason="out of memory")
    skipped = stage("full_model", status="skipped", reason="no backbone")
    words = texts_of(run_record(failed, skipped), "stages.svg")
    assert {"failed", failed.title} <= set(words)
    assert skipped.title not in words


def test_the_loader_is_held_against_the_training_step() -> None:
    words = texts_of(run_record(), "loader.svg")
    assert {"mmap", "preload", "one training step", "loader workers"} <= set(words)
    assert "ms per batch (logarithmic)" in words
    assert "ms per batch" in texts_of(slowed_input(), "loader.svg")


def test_every_gpu_and_every_stage_is_named_in_the_power_figure() -> None:
    record = run_record(gpus=2)
    stages = tuple(
        replace(each, power=(*each.power, power_trace(each.key, 100, gpu=1)))
        if each.power
        else each
        for each in record.stages
    )
    words = texts_of(replace(record, stages=stages), "power.svg")
    assert {"GPU 0", "GPU 1", "inference", "training", "real data", "full model"} <= set(words)


def test_a_resumed_run_goes_on_where_the_first_part_ended() -> None:
    record = run_record()
    resumed = [
        replace(
            each,
            power=tuple(
                replace(trace, at_seconds=tuple(at - 100 for at in trace.at_seconds))
                for trace in each.power
            ),
        )
        if each.key in ("real_data", "full_model")
        else each
        for each in record.stages
    ]
    (axes,) = draw_power(replace(record, stages=tuple(resumed))).axes
    drawn: list[Any] = [line.get_xdata() for line in axes.lines]
    spans = [(at[0], at[-1]) for at in drawn if len(at) > 2]
    # The pauses within each part are kept: only the restart of the clock is taken out.
    assert spans == [(20, 31), (40, 51), (60, 71), (71, 82), (91, 102)]
    assert "without the pause" in axes.get_xlabel()
    (whole,) = draw_power(record).axes
    assert whole.get_xlabel() == "seconds since the run began"


def test_a_figure_without_a_place_for_its_seal_is_refused() -> None:
    with pytest.raises(ValueError, match="no place for its seal"):
        seal.seal(b"<svg/>")


def test_any_changed_byte_breaks_the_seal() -> None:
    record = run_record(without=["loader"])
    fingerprint = derive.fingerprint(record)
    svg = figures(record)["stages.svg"]
    assert seal.find_fault(svg, fingerprint) == ""
    for place in range(0, len(svg), 97):
        changed = svg[:place] + bytes([svg[place] ^ 1]) + svg[place + 1 :]
        assert seal.find_fault(changed, fingerprint) != ""
    assert seal.find_fault(svg + b" ", fingerprint) == "was edited after it was drawn"
    assert seal.find_fault(svg, "0" * 64) == "was drawn from another record"


def test_a_title_from_outside_is_text_and_no_markup() -> None:
    evil = "<script>$\\frac{1}{0}$ & \x1b[31m\u202e"
    record = run_record()
    stages = tuple(replace(each, title=evil) for each in record.stages)
    svg = figures(replace(record, stages=stages))["stages.svg"]
    assert b"<script" not in svg
    assert "<script>$\\frac{1}{0}$ &" in texts(svg)
