"""Does the report tell the ladder, its sums, its densities and its causes as they were measured?"""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from diagnose.analyze.findings import Finding
from diagnose.analyze.optimize import curves, density, ladder, memory_model, series_causes
from diagnose.analyze.optimize.experiment import judge_all
from diagnose.measure.optimize import experiment
from diagnose.records import codec
from diagnose.records.experiments import Comparison, OptimizeRecord
from diagnose.records.header import Reading
from diagnose.records.stats import Interval
from diagnose.render.optimize.report import (
    MOST_BLOCKS,
    MOST_BLOCKS_OF_QUICK_LADDER,
    answer,
    render_optimize,
)
from diagnose.render.parts import PARTS
from tests.support.records.experiments import ended, optimize_record, whole_catalogue
from tests.support.records.series import (
    COMPILED,
    EPOCH,
    batch,
    epoch,
    other_model,
    rung,
    series_record,
    whole_series,
    with_utilization,
)

OPTIMIZE = next(part for part in PARTS if part.record_name == "optimize.json")


def cells(text: str, start: str) -> list[str]:
    found = next(line for line in text.split("\n") if line.startswith(f"| {start}"))
    return [cell.strip() for cell in found.strip("|").split(" | ")]


def rungs_of(record: OptimizeRecord) -> list[ladder.Rung]:
    return ladder.climb(record, judge_all(record))


def test_every_rung_stands_beside_its_change_alone() -> None:
    rungs = rungs_of(whole_series())
    assert [each.added for each in rungs] == ["no_workers", "batch_512", "compile_default"]
    assert [round(each.together.center, 1) for each in rungs] == [1.6, 1.9, 2.2]
    assert [round(each.alone.center, 1) for each in rungs if each.alone] == [1.6, 1.4, 1.3]
    # Each on top of the one before: 1.9 / 1.6 and 2.2 / 1.9.
    assert [round(each.more.center, 2) for each in rungs[1:]] == [1.19, 1.16]
    assert rungs[0].more == rungs[0].together


@pytest.mark.parametrize(
    ("together", "words"),
    [(1.9, "they overlap"), (2.24, "do not hinder"), (3.0, "they help each other")],
)
def test_the_single_gains_are_multiplied_and_held_against_the_whole(
    together: float, words: str
) -> None:
    record = series_record(
        epoch("no_workers", 1.6),
        batch(512, 1.4),
        rungs=(rung("no_workers", 1.6), rung("batch_512", together)),
    )
    found = ladder.interaction(rungs_of(record))
    assert found is not None
    assert round(found.product.center, 2) == 2.24
    assert words in found.verdict


def test_one_rung_alone_interacts_with_nothing() -> None:
    record = series_record(epoch("no_workers", 1.6), rungs=(rung("no_workers", 1.6),))
    assert ladder.interaction(rungs_of(record)) is None
    assert "nothing can interact" in ladder.ladder_lines(record, judge_all(record))[-1]


def test_the_four_figures_come_from_the_same_slots() -> None:
    record = whole_series()
    text = "\n".join(ladder.ladder_lines(record, judge_all(record)))
    header, base = cells(text, "changes so far"), cells(text, "as it was")
    assert header[-4:] == ["utilisation", "samples/s", "ms per epoch", "peak memory"]
    # 32 samples in half a second.
    assert float(base[-3]) == pytest.approx(64, rel=0.01)
    last = cells(text, "+ compile\\_default")
    assert float(last[-3]) == pytest.approx(64 * 2.2, rel=0.02)
    assert float(last[1].split()[0]) == pytest.approx(2.2, rel=0.01)
    assert float(last[4].split()[0]) == pytest.approx(1.3, rel=0.01)
    before, after = map(float, cells(text, "no\\_workers")[4].split(" → "))
    assert (before, after) == pytest.approx((64, 102.4), rel=0.01)


def test_a_change_that_breaks_on_top_is_named() -> None:
    broken = replace(ended("batch_512", "failed", "out of memory: 2 GB"), facts={"added": "x"})
    record = series_record(epoch("no_workers", 1.6), rungs=(rung("no_workers", 1.6), broken))
    text = "\n".join(ladder.ladder_lines(record, judge_all(record)))
    assert "- batch\\_512 on top: FAILED. out of memory: 2 GB" in text
    nothing = series_record(rungs=(broken,))
    assert "No change is certain to gain" in "\n".join(ladder.ladder_lines(nothing, ()))
    assert OPTIMIZE.figure_names(nothing) == ()


def test_the_waterfall_belongs_to_its_record() -> None:
    record = whole_series()
    assert OPTIMIZE.figure_names(record) == ("ladder.svg",)
    drawn = OPTIMIZE.draw(record)
    assert drawn == OPTIMIZE.draw(record)
    picture = drawn["ladder.svg"].decode()
    for words in ("as it was", "+ no_workers", "all together", "1.60x so far"):
        assert words in picture
    assert OPTIMIZE.draw(optimize_record()) == {}


def test_the_report_of_the_series_has_its_own_sections() -> None:
    text = render_optimize(whole_series())
    titles = [line.removeprefix("## ") for line in text.split("\n") if line.startswith("## ")]
    assert titles == [
        "Which line",
        "Before and after",
        "The ladder",
        "Compute density",
        "Loss at equal samples",
        "Findings",
        "Flags",
        "Behind the verdicts",
        "Data",
        "Machine",
        "How it was measured",
    ]
    assert "None" not in text
    assert "003-" not in text
    read_back = codec.from_dict(OptimizeRecord, json.loads(codec.dumps(whole_series())))
    assert render_optimize(read_back) == text


def test_the_report_of_the_first_workload_has_no_ladder() -> None:
    text = render_optimize(whole_catalogue())
    for title in ("## The ladder", "## Compute density", "## Findings", "OTHER"):
        assert title not in text


def test_a_ladder_without_rungs_still_tells_each_change() -> None:
    text = render_optimize(series_record(epoch("set_to_none", 1.0)))
    assert "No change is certain to gain" in text
    assert "or 12 blocks are done" in text
    assert "or 30 blocks are done" in render_optimize(whole_catalogue())
    assert MOST_BLOCKS_OF_QUICK_LADDER == experiment.MOST_BLOCKS_OF_QUICK_LADDER
    assert MOST_BLOCKS == experiment.MOST_BLOCKS


def test_noise_excludes_no_suspect() -> None:
    """The same code differs from itself by half here, so a gain of a fifth cannot be seen."""
    noisy = epoch("no_workers", 1.2, noise=0.5)
    (outcome,) = judge_all(series_record(noisy))
    assert outcome.verdict != "FASTER"
    assert cause(series_record(noisy), "loader_bound").verdict == "cannot tell"


def test_the_answer_names_what_is_on_the_ladder() -> None:
    record = whole_series()
    text = answer(record, judge_all(record))
    assert "single change is no_workers: 1.6" in text
    assert "together (no_workers, batch_512, compile_default): 2." in text
    assert "Not measured" not in text


@pytest.mark.parametrize("ratio", [0.2, 1.0, 5.0])
def test_another_model_is_never_called_faster(ratio: float) -> None:
    record = series_record(other_model("hidden_128", ratio, (1000, 4000)))
    (outcome,) = judge_all(record)
    assert (outcome.verdict, outcome.timed) == ("OTHER_MODEL", None)
    text = render_optimize(record)
    row = cells(text[text.index("## Before") :], "hidden\\_128")
    assert row[5] == "OTHER\\_MODEL"
    assert row[2].startswith("–")
    assert "single change is proven to be faster" in text


def test_density_tells_the_work_of_both_models() -> None:
    record = series_record(other_model("hidden_128", 0.5, (1_000_000, 4_000_000)))
    text = "\n".join(density.density_lines(judge_all(record)))
    small, large = [line for line in text.split("\n") if line.startswith("| hidden\\_128")]
    # 64 and 32 samples per second of 1 and 4 MFLOP.
    assert re.search(r"6[34]\.\d+ \[.*\] MFLOP/s", small)
    assert re.search(r"12[78]\.\d* ?\[?.*MFLOP/s", large)
    assert density.density_lines(judge_all(whole_catalogue())) == []


def test_curves_are_told_at_equal_samples_with_their_difference() -> None:
    text = "\n".join(curves.curve_lines(judge_all(series_record(batch(256, 1.2)))))
    assert cells(text, "loss")[1:] == [
        "33 % of the samples",
        "67 % of the samples",
        "100 % of the samples",
    ]
    assert cells(text, "after")[1:] == ["1.000", "0.7000", "0.5000"]
    assert "At the end the loss of after is 0.5000, that of before 0.2500: +100 %" in text
    assert curves.curve_lines(judge_all(series_record(epoch("no_workers", 1.6)))) == []


# --- the rules ---


def cause(record: OptimizeRecord, kind: str) -> Finding:
    found = series_causes.judge_series(record, judge_all(record))
    assert len({each.kind for each in found}) == len(found)
    return next(each for each in found if each.kind == kind)


@pytest.mark.parametrize(
    ("utilization", "verdict"), [(0.3, "cause"), (0.69, "cause"), (0.7, "excluded")]
)
def test_utilisation_below_seventy_percent(utilization: float, verdict: str) -> None:
    base = with_utilization(rung("no_workers", 1.6, watts=(200.0, 300.0)), utilization, 0.9)
    record = series_record(epoch("no_workers", 1.6), rungs=(base,), gpus=1)
    assert cause(record, "low_utilization").verdict == verdict


def test_a_cpu_has_no_utilisation_to_tell() -> None:
    found = cause(whole_series(), "low_utilization")
    assert (found.verdict, found.evidence) == ("cannot tell", "this machine has no NVIDIA GPU")


@pytest.mark.parametrize(
    ("more", "fewer", "verdict", "words"),
    [
        (0.7, 2.0, "cause", "Loader processes cost 50 %"),
        (2.0, 0.7, "cause", "The device waits for the loader: 8 workers save 50 %"),
        (1.0, 1.0, "excluded", "is not the cause"),
    ],
)
def test_bound_by_the_loader(more: float, fewer: float, verdict: str, words: str) -> None:
    found = cause(
        series_record(epoch("workers_8", more), epoch("no_workers", fewer)), "loader_bound"
    )
    assert found.verdict == verdict
    assert words in found.sentence


@pytest.mark.parametrize(("seconds", "verdict"), [(0.05, "excluded"), (10.0, "cause")])
def test_bound_by_preprocessing(seconds: float, verdict: str) -> None:
    facts = {"preprocessing_seconds": seconds}
    record = series_record(epoch("workers_8", 1.0, facts=facts))  # 100 epochs take 50 s
    assert cause(record, "preprocessing_bound").verdict == verdict


@pytest.mark.parametrize(
    ("ratios", "verdict"), [((1.1, 1.4), "cause"), ((1.0, 0.9), "excluded"), ((), "cannot tell")]
)
def test_a_batch_that_is_too_small(ratios: tuple[float, ...], verdict: str) -> None:
    tried = [batch(size, ratio) for size, ratio in zip((256, 512), ratios, strict=False)]
    found = cause(series_record(*tried), "batch_too_small")
    assert found.verdict == verdict
    if verdict == "cause":
        assert "batch 512" in found.sentence


@pytest.mark.parametrize(
    ("ratio", "flops", "verdict"),
    [(0.5, 4000, "cause"), (0.25, 4000, "excluded"), (0.2, 4000, "excluded")],
)
def test_a_model_that_is_too_small(ratio: float, flops: int, verdict: str) -> None:
    record = series_record(other_model("hidden_128", ratio, (1000, flops)))
    assert cause(record, "model_too_small").verdict == verdict


@pytest.mark.parametrize(
    ("ratio", "facts", "verdict", "words"),
    [
        (1.3, COMPILED, "excluded", "earned back after 174 epochs"),
        (1.0, COMPILED, "cause", "never earned back"),
        (1.0, {**COMPILED, "took_effect": False}, "cause", "2 graph breaks, 1 recompiles"),
    ],
)
def test_compile_without_effect(
    ratio: float, facts: dict[str, float], verdict: str, words: str
) -> None:
    found = cause(
        series_record(epoch("compile_default", ratio, facts=facts)), "compile_without_effect"
    )
    assert found.verdict == verdict
    number = re.compile(r"after \d+ epochs")
    assert number.sub("", words) in number.sub("", found.evidence)


def test_compile_that_cannot_run_is_told() -> None:
    skipped = ended("compile_default", "skipped", "there is no C++ compiler")
    found = cause(series_record(replace(skipped, scope=EPOCH)), "compile_without_effect")
    assert (found.verdict, found.evidence) == ("cannot tell", "there is no C++ compiler")


def out_of_memory(key: str) -> Comparison:
    return ended(key, "failed", "out of memory: tried to allocate 2 GB")


def test_the_memory_model_is_a_line_through_the_peaks() -> None:
    record = series_record(batch(512, 1.4, peaks=(1e9, 1.384e9)), gpus=1)
    found = memory_model.fit_memory(record, judge_all(record))
    assert isinstance(found, memory_model.MemoryModel)
    # 1 GB at 128 and 1.384 GB at 512: 1 MB per sample.
    assert found.bytes_per_sample == pytest.approx(1e6)
    assert found.fixed_bytes == pytest.approx(0.872e9)
    assert found.largest_batch(2e9) == (int((0.9 * 2e9 - 0.872e9) / 1e6) // 32) * 32


@pytest.mark.parametrize(
    ("limit", "advice"),
    [
        (1.4e9, "from 512 to 384, by 128, and accumulate over 2 batches"),
        (100e9, "from 512 to 256, by 256"),  # the line says it fits, but it did not
        (0.5e9, "Lower the hidden size"),
    ],
)
def test_out_of_memory_says_what_to_lower_by_how_much(limit: float, advice: str) -> None:
    tried = batch(256, 1.2, peaks=(1e9, 1.128e9)), out_of_memory("batch_512")
    record = series_record(*tried, gpus=1)
    card = replace(record.header.machine.gpus[0], memory_bytes=Reading(limit))
    record = replace(
        record, header=replace(record.header, machine=replace(record.header.machine, gpus=(card,)))
    )
    found = cause(record, "out_of_memory")
    assert (found.verdict, found.severity) == ("cause", "critical")
    assert advice in found.advice


def test_memory_that_did_not_run_out_is_excluded() -> None:
    rising = series_record(batch(512, 1.4, peaks=(1e9, 1.384e9)), gpus=1)
    found = cause(rising, "out_of_memory")
    assert found.verdict == "excluded"
    assert "872 MB + 1.00 MB per sample" in found.evidence
    assert "keeps what was freed" in cause(whole_series(), "out_of_memory").evidence
    flat = cause(series_record(batch(256, 1.2, peaks=(1e9, 1e9)), gpus=1), "out_of_memory")
    assert "the peaks do not rise with the batch" in flat.evidence
    other = cause(series_record(out_of_memory("hidden_256")), "out_of_memory")
    assert "half" in other.advice


def test_an_interval_without_ends_decides_nothing() -> None:
    unknown = Interval(2.0, None, None)
    found = ladder.Interaction(unknown, Interval(1.0, 0.9, 1.1))
    assert "not decided" in found.verdict
