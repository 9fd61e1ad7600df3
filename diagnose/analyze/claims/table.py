"""What was claimed, and which number decides it? One table, and the readers of those numbers.

The claims come from five field reports; an id names the report and the row in it. What only
repeats the arithmetic of a report, or comes out the same on every machine, is no claim here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

from diagnose.analyze import derive
from diagnose.analyze.claims.steps import (
    communication_share,
    moving_share,
    point,
    ranks_gain,
    rarer_evaluation,
    stage,
    without_shared_memory,
)
from diagnose.analyze.claims.verdict import (
    ABOUT,
    Claim,
    Evidence,
    Found,
    NotDecided,
    NotMeasured,
    Range,
    Source,
)
from diagnose.analyze.claims.verdict import about as _about
from diagnose.analyze.claims.verdict import on_any_device as _any
from diagnose.analyze.claims.verdict import on_gpu as _gpu
from diagnose.analyze.optimize.effects import fact_of, find, is_bundle
from diagnose.analyze.optimize.experiment import Outcome, judge_family, time_ratio
from diagnose.analyze.optimize.launches import most_repeated, share
from diagnose.analyze.units import PERCENT, PLAIN, percent, scale
from diagnose.analyze.verdicts import MATTERS
from diagnose.records.batch_size import AS_IT_IS, UNDER_DDP, BatchSizeRecord
from diagnose.records.experiments import Comparison, OptimizeRecord
from diagnose.records.header import Reading
from diagnose.records.ranks import BandwidthRecord, ScalingRecord
from diagnose.records.run import Measurement, RunRecord
from diagnose.records.stats import SMALLEST_MARGIN, Interval

LESS: Range = (0.0, 1 - SMALLEST_MARGIN)
MORE: Range = (1 + SMALLEST_MARGIN, math.inf)
SAME: Range = (1 - MATTERS, 1 + MATTERS)
MOST: Range = (0.5, math.inf)
NOTICED: Range = (MATTERS, math.inf)
ALL: Range = (1.0, 1.0)
# Of what was read once, and has no interval to tell a change from scatter.
RAISED: Range = (1 + MATTERS, math.inf)
CLEARLY_LESS: Range = (0.0, 1 - ABOUT)
STEP = "training step"


def speedup(evidence: Evidence, key: str, scope: str | None = None) -> Found:
    """Time before over time after, judged together with all experiments of the record."""
    outcome = _tried(evidence, key, scope)
    if outcome.timed is None:
        raise NotMeasured(f"{key}: {outcome.reason}")
    return _judged(outcome, outcome.timed.speedup)


def ladder_speedup(evidence: Evidence) -> Found:
    """All changes on top of each other against the base."""
    record = evidence.record
    steps = judge_family(record.rungs, record.header.machine)
    timed = [(each, each.timed.speedup) for each in steps if each.timed is not None]
    if not timed:
        raise NotMeasured("no change was put on top of another")
    return _judged(*timed[-1])


def time_saved(evidence: Evidence, key: str) -> Found:
    """Time before over time after, although the results may differ."""
    outcome = _tried(evidence, key)
    ratio = time_ratio(outcome.comparison)
    if ratio is None or outcome.verdict == "INVALID":
        raise NotMeasured(f"{key}: {outcome.reason}")
    return Found(ratio)


def per_process(evidence: Evidence, key: str) -> Found:
    """What several processes gain over the job as it was, for each of them."""
    comparison = _tried(evidence, key).comparison
    # A plan may change the answers besides.
    found = time_saved(evidence, key) if is_bundle(comparison) else speedup(evidence, key)
    part = 1 / _number(comparison, "after_processes")
    remark = f"{1 / part:g} processes"
    return replace(found, value=scale(found.value, part), remark=remark, same=part)


def density(evidence: Evidence, key: str) -> Found:
    """FLOP/s of another model over those of the original."""
    before, after = _sides(_tried(evidence, key).comparison, "flops_per_sample")
    return Found(scale(time_saved(evidence, key).value, after / before))


def fitting_answers(evidence: Evidence, key: str, fact: str) -> Found:
    """The share of the reference answers that are so short, of questions that are the user's."""
    comparison, data = _tried(evidence, key).comparison, evidence.record.workload.data
    # A user's own questions are described by the name of their file.
    if data is None or ".jsonl" not in data.description:
        raise NotDecided("claimed of real questions, and these are built in; --data takes yours")
    return Found(point(_number(comparison, fact)), data.description, PERCENT)


def wait_ratio(evidence: Evidence, key: str) -> Found:
    """The share of its time that training waits for data, after over before."""
    before, after = _sides(_tried(evidence, key).comparison, "data_wait_share")
    if not before:
        raise NotMeasured("training never waited for data")
    return Found(point(after / before), f"{percent(before)} → {percent(after)} of an epoch")


def peak(evidence: Evidence, key: str, scope: str | None = None) -> Found:
    """Peak memory after over before."""
    return _side_ratio(_tried(evidence, key, scope), lambda side: side.peak_bytes)


def utilization(evidence: Evidence, key: str) -> Found:
    """The share of time with a kernel running, after over before."""
    return _side_ratio(_tried(evidence, key), derive.utilization)


def watts(evidence: Evidence, key: str, scope: str | None = None) -> Found:
    """Power after over before, one mean of each side."""
    return _side_ratio(_tried(evidence, key, scope), derive.watts)


def _side_ratio(outcome: Outcome, read: Callable[[Measurement], Reading]) -> Found:
    comparison = outcome.comparison
    if comparison.before is None or comparison.after is None:
        raise NotMeasured(f"{outcome.name} was not timed")
    before, after = read(comparison.before), read(comparison.after)
    if not before.value or after.value is None:
        raise NotMeasured(before.reason or after.reason or "the reading before is 0")
    return Found(point(after.value / before.value))


def tensors_saved(evidence: Evidence, key: str) -> Found:
    """How much less a step holds at its peak, in tensors of the vocabulary's size; counted."""
    comparison = _tried(evidence, key).comparison
    before, after = _sides(comparison, "peak_bytes")
    saved = (before - after) / _number(comparison, "vocabulary_tensor_bytes")
    return Found(point(saved), f"{before - after:,.0f} bytes of {before:,.0f}", PLAIN)


def full_precision_share(evidence: Evidence) -> Found:
    """Of the operators' time under autocast, what is spent in float32; casts do not count."""
    comparison = _tried(evidence, "mixed_precision").comparison
    share_of_time = point(_number(comparison, "fp32_time_share"))
    return Found(share_of_time, str(comparison.facts.get("fp32_operators", "")), PERCENT)


def loop_share(evidence: Evidence) -> Found:
    """Launches of the line that repeats most, over all launches of the step."""
    for each in evidence.record.maps:
        line = most_repeated(each) if each.form == "original" else None
        if line is not None:
            return Found(point(share(line, each)), unit=PERCENT)
    raise NotMeasured("no launch map of the original form shows a line that repeats")


def batch_gain(evidence: Evidence, batch: int) -> Found:
    """Samples/s of a batch over those of single samples."""
    for each in evidence.answers:
        gains = {row.batch: row.gain for row in each.rows}
        if 1 in gains and batch in gains:
            return Found(gains[batch])
    raise NotMeasured(f"batches of 1 and {batch} were not both timed")


def doubled_memory(evidence: Evidence) -> Found:
    """The peak at batch 64 over that at 32, by the measured line of memory over batch."""
    for each in evidence.answers:
        if each.line is not None:
            return Found(point(each.line.predict_bytes(64) / each.line.predict_bytes(32)))
    raise NotMeasured("memory is known for fewer than two batch sizes")


def crops_ratio(evidence: Evidence, many: int, few: int = 4) -> Found:
    """The largest batch at so many tiles over that at fewer."""
    exact = {
        each.configuration.settings.get("max_crops"): each.largest
        for each in evidence.answers
        if each.is_exact
    }
    more, less = exact.get(many), exact.get(few)
    if not more or not less:
        raise NotMeasured(f"max_crops {few} and {many} have no exact largest batch both")
    return Found(point(more / less), f"{less} → {more}")


def ddp_ratio(evidence: Evidence) -> Found:
    """The largest batch under DDP over that of the same job without it."""
    exact = {each.configuration.key: each.largest for each in evidence.answers if each.is_exact}
    alone, under = exact.get(AS_IT_IS), exact.get(UNDER_DDP)
    if not alone or not under:
        raise NotMeasured("with and without DDP there is no exact largest batch both (--ddp)")
    return Found(point(under / alone), f"{alone} → {under}")


def knee_of_largest(evidence: Evidence) -> Found:
    """The smallest batch that is as fast as any, over the largest that fits."""
    for each in evidence.answers:
        if each.knee and each.largest and (each.is_exact or each.knee < each.largest):
            remark = f"{each.largest} fit, {each.knee} is as fast"
            return Found(point(each.knee / each.largest), remark)
    raise NotMeasured("the largest that fits and the fastest are not both known")


def _tried(evidence: Evidence, key: str, scope: str | None = None) -> Outcome:
    outcome = find(evidence.outcomes, key, scope)
    if outcome is None:
        raise NotMeasured(f"{key} was not tried" + (f" on a {scope}" if scope else ""))
    return outcome


def _judged(outcome: Outcome, value: Interval) -> Found:
    moved = (value.low or 0.0) > 1 or (value.high is not None and value.high < 1)
    return Found(value, doubt=outcome.reason if outcome.verdict == "INCONCLUSIVE" and moved else "")


def _sides(comparison: Comparison, name: str) -> tuple[float, float]:
    """A fact that both sides have."""
    return _number(comparison, f"before_{name}"), _number(comparison, f"after_{name}")


def _number(comparison: Comparison, name: str) -> float:
    value = fact_of(comparison, name)
    if value is None:
        raise NotMeasured(comparison.reason or f"{name} was not recorded")
    return value


RUN = Source("diagnose run", RunRecord, ("bert", "dgca"))
DGCA = Source("diagnose optimize --workload dgca", OptimizeRecord, ("dgca",))
RANKS = Source("ddp_scaling.py", ScalingRecord, ("bert", "dgca"))
LINK = Source("ddp_bandwidth.py --env-sweep", BandwidthRecord)
SERIES = Source("diagnose optimize --workload timeseries", OptimizeRecord, ("timeseries",))
WRITERS = ("textgen", "vqa", "molmo")
WRITING = Source("diagnose optimize --workload vqa", OptimizeRecord, WRITERS)
BATCHES = Source("diagnose batch-size --workload vqa", BatchSizeRecord, WRITERS)
CROPS = Source("diagnose batch-size --workload molmo", BatchSizeRecord, ("molmo", "vqa"))
TRAINED = Source("diagnose batch-size --workload dgca --ddp", BatchSizeRecord, ("dgca", "bert"))

CLAIMS: Mapping[Source, tuple[Claim, ...]] = {
    WRITING: (
        _gpu("000-07", "twice the batch raises utilization", RAISED, utilization, "batch_double"),
        _gpu("000-11", "pin_memory=True is faster", MORE, speedup, "pin_memory"),
        _gpu("000-15", "loader processes gain 10 to 20 %", (1.1, 1.2), speedup, "workers_4"),
        _any(
            "000-17",
            "answers usually have 1 to 10 tokens",
            MOST,
            fitting_answers,
            "tokens_16",
            "within_10_tokens_share",
        ),
        _any(
            "000-18",
            "16 tokens are enough for more than 99 % of the answers",
            (0.99, math.inf),
            fitting_answers,
            "tokens_16",
            "after_coverage_share",
        ),
        _any(
            "000-19",
            "8 tokens are enough for more than 95 % of the answers",
            (0.95, math.inf),
            fitting_answers,
            "tokens_8",
            "after_coverage_share",
        ),
        _gpu("000-21", "16 instead of 32 tokens: about 2x", _about(2), time_saved, "tokens_16"),
        _gpu("000-22", "8 instead of 32 tokens: about 4x", _about(4), time_saved, "tokens_8"),
        _gpu(
            "000-26",
            "each of several processes is as fast as one alone",
            _about(1),
            per_process,
            "processes_2",
        ),
        _gpu("000-34", "plan A gains 2 to 3x", (2, 3), time_saved, "plan_a"),
        _gpu("000-36", "plan B gains 4 to 5x", (4, 5), time_saved, "plan_b"),
        _gpu("000-38", "with plan C each process gains 2x", _about(2), per_process, "plan_c"),
        _gpu("004-40", "half precision is faster", MORE, speedup, "bfloat16"),
    ),
    CROPS: (
        _gpu("002-14", "1 crop allows the batch of 4", _about(1), crops_ratio, 1),
        _gpu("002-15", "8 crops allow 3/4 of the batch of 4", _about(0.75), crops_ratio, 8),
        _gpu("002-16", "12 crops allow half the batch of 4", _about(0.5), crops_ratio, 12),
        _gpu("002-17", "13 crops allow 0.4 of the batch of 4", _about(0.4), crops_ratio, 13),
    ),
    TRAINED: (_gpu("003-96", "under DDP only a smaller batch fits", LESS, ddp_ratio),),
    BATCHES: (
        _gpu("000-08", "twice the batch takes twice the memory", (1.9, 2.1), doubled_memory),
        _gpu("004-48", "batches of 4 gain 2.7x", _about(2.7), batch_gain, 4),
        _gpu("004-49", "batches of 8 gain 3.4x", _about(3.4), batch_gain, 8),
        _gpu("004-53", "the largest batch that fits is the one to use", ALL, knee_of_largest),
    ),
    SERIES: (
        _gpu("001-02", "batch 256 raises utilization", RAISED, utilization, "batch_256"),
        _gpu("001-06", "TF32 is 1.2 to 1.5 times as fast", (1.2, 1.5), speedup, "tf32"),
        _gpu("001-10", "8 loader workers shorten the wait", CLEARLY_LESS, wait_ratio, "workers_8"),
        _gpu("001-14", "a hidden size of 128 is denser", MORE, density, "hidden_128"),
        _gpu(
            "001-16", "torch.compile gains 20 to 50 %", (1.2, 1.5), speedup, "compile_max_autotune"
        ),
        _gpu("001-19", "set_to_none=True gains 5 to 10 %", (1.05, 1.1), speedup, "set_to_none"),
        _gpu("001-24", "all changes together gain 2 to 4x", (2, 4), ladder_speedup),
    ),
    RUN: (
        _gpu("003-16", "FP16 makes a step about 2x as fast", _about(2), stage, "precision"),
        _gpu("003-94", "moving operands takes most of a step", MOST, moving_share),
        _gpu("003-24", "real data take no longer than resident batches", SAME, stage, "real_data"),
    ),
    DGCA: (
        _any("003-25", "preloading loads a batch no faster", SAME, speedup, "dataset_preload"),
        _gpu("003-26", "4 loader workers are as fast as 2", SAME, speedup, "loader_workers_4"),
        _gpu("003-26", "8 loader workers are as fast as 2", SAME, speedup, "loader_workers_8"),
        _any("003-28", "the double loop makes most of the launches", MOST, loop_share),
        _gpu("003-33", "a step without the loop is faster", MORE, speedup, "apply_prompt", STEP),
        _gpu("003-34", "masking on the device is faster", MORE, speedup, "dynamic_mask"),
        _any(
            "003-36",
            "scatter_add_ saves a tensor of the vocabulary's size (1.3 GB in the report)",
            _about(1),
            tensors_saved,
            "gated_fusion",
        ),
        _gpu("003-37", "scatter_add_ lowers the peak of a step", LESS, peak, "gated_fusion", STEP),
        _any("003-38", "rows without clone() load faster", MORE, speedup, "dataset_clone"),
        _gpu("003-44", "all changes gain about 2.2x", _about(2.2), speedup, "all_together", STEP),
        _gpu("003-46", "power rises by about 60 %", _about(1.6), watts, "all_together", STEP),
        _gpu("003-93", "operators left in FP32 take time", NOTICED, full_precision_share),
        _gpu("003-101", "torch.compile makes a step faster", MORE, speedup, "torch_compile", STEP),
    ),
    RANKS: (
        _gpu("003-49", "two cards are slower than one", LESS, ranks_gain),
        _gpu("003-51", "communication is most of what is lost", MOST, communication_share),
        _gpu("003-61", "a bucket of 200 MB is faster", MORE, speedup, "bucket_cap_200"),
        _gpu("003-84", "an evaluation every 2000 steps saves time", MORE, rarer_evaluation),
        _gpu("003-85", "4 loader workers per rank are slower than 2", LESS, speedup, "workers_4"),
        _gpu("003-98", "gradient_as_bucket_view saves memory", LESS, peak, "bucket_view"),
        _gpu("003-102", "FSDP is faster than DDP", MORE, speedup, "fsdp2"),
    ),
    LINK: (
        _gpu(
            "003-09",
            "NCCL_SHM_DISABLE=1 leaves less than half of the bandwidth",
            (0, 0.5),
            without_shared_memory,
        ),
    ),
}
