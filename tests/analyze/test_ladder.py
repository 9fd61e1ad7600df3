"""Are the ladder, the rates and the causes of an idle device judged as they were measured?"""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest

from diagnose.analyze.findings import Finding
from diagnose.analyze.optimize import series_causes, work
from diagnose.analyze.optimize.effects import best_changes, either, leaders, locate, widest
from diagnose.analyze.optimize.experiment import judge_all, judge_family
from diagnose.analyze.optimize.ladder import climb
from diagnose.records.experiments import Comparison, OptimizeRecord
from diagnose.records.header import Reading
from diagnose.records.run import StageResult
from tests.support.records.experiments import (
    compare,
    ended,
    noisy_blocks,
    optimize_record,
    side,
    wrong,
)
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


def test_every_step_is_held_against_the_base_of_its_own_blocks() -> None:
    steps = climb(whole_series())
    assert [each.comparison.key for each in steps] == ["no_workers", "batch_512", "compile_default"]
    found = [each.timed.speedup.center for each in steps if each.timed is not None]
    assert [round(each, 1) for each in found] == [1.6, 1.9, 2.2]


def test_a_step_that_broke_is_left_out_and_an_undecided_one_is_not_proven() -> None:
    broken = ended("batch_512", "failed", "out of memory: 2 GB")
    few = rung("no_workers", 1.6, blocks=4)
    (step,) = climb(series_record(epoch("no_workers", 1.6), rungs=(few, broken)))
    assert (step.comparison.key, step.verdict) == ("no_workers", "INCONCLUSIVE")
    assert climb(series_record(rungs=(broken,))) == []


@pytest.mark.parametrize(
    ("second", "noise", "first"),
    [
        (1.4, 0.001, ["a"]),  # the intervals leave a gap
        (1.4, 0.2, ["a", "b"]),
        (2.2, 0.001, ["b"]),
        (1.0, 0.001, ["a"]),
    ],
)
def test_only_a_gap_between_intervals_makes_one_the_largest(
    second: float, noise: float, first: list[str]
) -> None:
    tried = [compare("a", 2.0, noise=noise), compare("b", second, noise=noise), wrong("c")]
    outcomes = judge_family(tried, optimize_record().header.machine)
    names = [each.comparison.key for each in leaders(outcomes)]
    assert sorted(names) == first
    assert ("overlap" in either(names)) is (len(first) > 1)
    assert leaders([]) == []


@pytest.mark.parametrize("ratio", [0.2, 1.0, 5.0])
def test_another_model_is_never_called_faster(ratio: float) -> None:
    outcomes = judge_all(series_record(other_model("hidden_128", ratio, (1000, 4000))))
    assert (outcomes[0].verdict, outcomes[0].timed) == ("OTHER_MODEL", None)
    assert best_changes(outcomes) == []


def test_each_change_counts_in_its_widest_scope() -> None:
    tried = compare("a", 3.0, scope="forward"), compare("a", 1.5), compare("b", 2.0, scope="batch")
    outcomes = judge_all(optimize_record(*tried, wrong("a")))
    assert [each.comparison.scope for each in widest(outcomes)] == ["training step", "batch"]
    (best,) = best_changes(outcomes)
    assert (best.comparison.key, best.comparison.scope) == ("a", "training step")


@pytest.mark.parametrize(
    ("forward", "step", "words"),
    [
        (1.05, 1.2, "94 % in the backward pass"),
        (5.0, 1.2, "4.2 % in the backward pass"),
        (1.2, 1.0, "not proven"),
    ],
)
def test_where_an_effect_sits(forward: float, step: float, words: str) -> None:
    tried = compare("a", forward, 0.1, "forward"), compare("a", step, 0.5)
    (text,) = locate(judge_all(optimize_record(*tried)))
    assert text.endswith(words)


# --- the share of the backbone's rate ---


def with_backbone(share: float, flops: float = 4e9, noise: float = 0.01) -> OptimizeRecord:
    """A backbone of 2 GFLOP in 0.1 s, and a step that reaches `share` of its FLOP/s."""
    times = share * 2e9 / flops
    before, _, after = noisy_blocks(0.1, times, noise=noise)
    backbone = replace(side("backbone", before), flops_per_step=Reading(2e9))
    optimised = replace(side("optimised", after), flops_per_step=Reading(flops))
    stage = StageResult("pace", "pace", "done", measurements=(optimised, backbone))
    return replace(optimize_record(), pace=stage)


@pytest.mark.parametrize(
    ("share", "noise", "words"),
    [
        (0.6, 0.01, "still costs"),
        (0.95, 0.01, "little is left to gain"),
        (work.NEAR_ENOUGH, 0.1, "not decided"),
    ],
)
def test_the_share_is_that_of_the_rates_and_judged_only_when_decided(
    share: float, noise: float, words: str
) -> None:
    record = with_backbone(share, noise=noise)
    found = work.share_of_backbone_rate(record)
    assert found is not None
    assert found.ends is not None
    assert found.ends[0] <= found.center <= found.ends[1]
    assert math.isclose(found.center, share, rel_tol=0.05 + noise)
    assert words in work.describe_backbone_share(record)


def test_no_share_has_its_reason() -> None:
    failed = StageResult("pace", "pace", "failed", "out of memory")
    record = with_backbone(0.9)
    assert record.pace is not None
    uncounted = tuple(
        replace(each, flops_per_step=Reading(None, "not counted"))
        for each in record.pace.measurements
    )
    blind = replace(record, pace=replace(record.pace, measurements=uncounted))
    for each, words in (
        (optimize_record(), "was not compared"),
        (replace(optimize_record(), pace=failed), "out of memory"),
        (blind, "could not be counted"),
    ):
        assert work.share_of_backbone_rate(each) is None
        assert words in work.describe_backbone_share(each)


# --- the causes of an idle device ---


def cause(record: OptimizeRecord, kind: str) -> Finding:
    found = series_causes.judge_series(record, judge_all(record))
    assert len({each.kind for each in found}) == len(found)
    return next(each for each in found if each.kind == kind)


@pytest.mark.parametrize(
    ("utilization", "verdict"), [(0.3, "cause"), (0.69, "cause"), (0.7, "excluded")]
)
def test_utilization_below_seventy_percent(utilization: float, verdict: str) -> None:
    base = with_utilization(rung("no_workers", 1.6, watts=(200.0, 300.0)), utilization, 0.9)
    record = series_record(epoch("no_workers", 1.6), rungs=(base,), gpus=1)
    assert cause(record, "low_utilization").verdict == verdict


PREPROCESSED = "preprocessing_seconds"
SKIPPED = replace(ended("compile_default", "skipped", "there is no C++ compiler"), scope=EPOCH)
OUT_OF_MEMORY = ended("batch_512", "failed", "out of memory: tried to allocate 2 GB")
NO_EFFECT = {**COMPILED, "took_effect": False}


@pytest.mark.parametrize(
    ("kind", "tried", "verdict", "words"),
    [
        ("loader_processes", (epoch("no_workers", 2.0),), "cause", "processes cost 50 %"),
        ("loader_processes", (epoch("no_workers", 1.0),), "excluded", ""),
        # The same code differs from itself by half here, so a gain of a fifth cannot be seen.
        ("loader_processes", (epoch("no_workers", 1.2, noise=0.5),), "cannot tell", ""),
        ("loader_bound", (epoch("workers_8", 2.0),), "cause", "8 workers save 50 %"),
        ("loader_bound", (epoch("workers_8", 0.7),), "excluded", ""),
        # 100 epochs take 50 s.
        (
            "preprocessing_bound",
            (epoch("workers_8", 1, facts={PREPROCESSED: 0.05}),),
            "excluded",
            "",
        ),
        ("preprocessing_bound", (epoch("workers_8", 1, facts={PREPROCESSED: 10.0}),), "cause", ""),
        ("batch_too_small", (batch(256, 1.1), batch(512, 1.4)), "cause", "batch 512"),
        ("batch_too_small", (batch(256, 1.0), batch(512, 0.9)), "excluded", ""),
        ("batch_too_small", (), "cannot tell", ""),
        ("model_too_small", (other_model("h", 0.5, (1000, 4000)),), "cause", "at least 1.9"),
        ("model_too_small", (other_model("h", 0.25, (1000, 4000)),), "excluded", ""),
        ("model_too_small", (), "cannot tell", ""),
        (
            "compile_without_effect",
            (epoch("compile_default", 1.3, facts=COMPILED),),
            "excluded",
            "earned back after",
        ),
        (
            "compile_without_effect",
            (epoch("compile_default", 1.0, facts=COMPILED),),
            "cause",
            "never earned back",
        ),
        (
            "compile_without_effect",
            (epoch("compile_default", 1.0, facts=NO_EFFECT),),
            "cause",
            "2 graph breaks, 1 recompiles",
        ),
        ("compile_without_effect", (SKIPPED,), "cannot tell", "there is no C++ compiler"),
        ("out_of_memory", (batch(256, 1.2), OUT_OF_MEMORY), "cause", "batch_512"),
        ("out_of_memory", (batch(256, 1.2),), "excluded", ""),
        ("low_utilization", (epoch("no_workers", 1.6),), "cannot tell", "no NVIDIA GPU"),
    ],
)
def test_a_suspect_is_accused_cleared_or_left_undecided(
    kind: str, tried: tuple[Comparison, ...], verdict: str, words: str
) -> None:
    found = cause(series_record(*tried), kind)
    assert found.verdict == verdict
    assert words in f"{found.sentence} {found.evidence}"
    assert bool(found.advice) or verdict != "cause"


def test_compile_time_is_earned_back_by_what_an_epoch_saves() -> None:
    made = epoch("compile_default", 2.0, facts=COMPILED)  # 20 s, and 0.25 s saved per epoch
    found = re.search(r"after (\d+) epochs", series_causes.compile_facts(made))
    assert found is not None
    assert int(found[1]) in range(79, 83)
