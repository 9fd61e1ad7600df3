"""Can every claim come out both ways? Made-up records on both sides of each expected range."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from bench import bert
from bench.dgca import workload as dgca
from diagnose.analyze.claims import steps, table
from diagnose.analyze.claims.table import ALL, CLAIMS, MORE, SAME
from diagnose.analyze.claims.verdict import Claim, Result, Source, judge_claims
from diagnose.records.batch_size import AS_IT_IS, UNDER_DDP
from diagnose.records.experiments import Comparison, LaunchMap, OptimizeRecord
from diagnose.records.header import Reading
from diagnose.records.ranks import CadenceCost, ScalingRecord
from diagnose.workload import Workload
from tests.support.records.batch_size import batch_size_record, configuration, probe, sweep
from tests.support.records.experiments import (
    BATCH,
    compare,
    launch_line,
    not_claimed,
    optimize_record,
)
from tests.support.records.link import bandwidth_record, gpu_record, trial
from tests.support.records.parts import machine, measurement, stage
from tests.support.records.run import pair, run_record
from tests.support.records.scaling import Losses, scaling_record
from tests.support.records.series import rung, with_utilization

Make = Callable[[Claim, float], Any]  # a record, or the comparison or map in one

EVERY = [(source, claim) for source, claims in CLAIMS.items() for claim in claims]
IDS = [f"{claim.id} {claim.sentence}" for _, claim in EVERY]


def tried(claim: Claim, ratio: float | None = 1.0, **options: Any) -> Comparison:
    key, scope = claim.of[0], claim.of[1] if claim.of[1:] == (table.STEP,) else "some scope"
    return compare(str(key), ratio, scope=str(scope), **options)


def dense(claim: Claim, value: float) -> Comparison:
    facts = {"changes_model": True, "before_flops_per_sample": 100, "after_flops_per_sample": 200}
    return tried(claim, value / 2, facts=facts, equality=not_claimed())


def mapped(claim: Claim, value: float) -> LaunchMap:
    trips, launches = 6 * BATCH, round(6 * BATCH / value)
    lines = (launch_line("loop", trips, trips), launch_line("rest", 1, launches - trips))
    return LaunchMap("original", {"batch_size": BATCH}, lines, launches, 0)


def shared(claim: Claim, value: float, processes: int = 8) -> Comparison:
    """So many times as fast by each process; a plan changes the answers besides."""
    facts: dict[str, Any] = {"after_processes": processes}
    if claim.of == ("plan_c",):
        facts |= {"parts": "processes_2, tokens_16", "may_change_answers": True}
        return tried(claim, processes * value, facts=facts, equality=not_claimed())
    return tried(claim, processes * value, facts=facts)


def answered(claim: Claim, value: float, description: str = "vqa.jsonl, 4 tiles each") -> Any:
    """Reference answers of which so many are short."""
    record = optimize_record(tried(claim, facts={str(claim.of[1]): value}))
    assert record.workload.data is not None
    data = replace(record.workload.data, description=description)
    return replace(record, workload=replace(record.workload, data=data))


def waited(claim: Claim, value: float) -> Comparison:
    facts = {"before_data_wait_share": 0.2, "after_data_wait_share": 0.2 * value}
    return tried(claim, facts=facts)


def evaluated(claim: Claim, value: float) -> ScalingRecord:
    """Time with frequent evaluation over that with a rare one; none costs less than nothing."""
    record = scaling_record(gpus=2, noise=0.0)
    step = 0.212  # of Losses() together
    share = 1 / steps.OFTEN - value / steps.RARELY
    seconds = Reading(max(0.0, step * (value - 1) / share))
    return replace(record, cadence=CadenceCost(seconds, Reading(2.0), 4096))


def linked(claim: Claim, value: float) -> Any:
    trials = [trial("as it is", 20e9), trial("NCCL_SHM_DISABLE=1", value * 20e9)]
    return gpu_record(trials=trials)


def grown(value: float) -> Any:
    """Memory of which so many times as much is in use at batch 64 as at 32."""
    fixed = 32 * (2 - value) / (value - 1)
    probes = tuple(probe(batch, limit=64, fixed=fixed, each=1) for batch in (1, 32, 64))
    return batch_size_record(configuration(probes=probes))


def cropped(claim: Claim, value: float) -> Any:
    def of(crops: int, largest: int) -> Any:
        probes = tuple(probe(each, limit=largest) for each in (largest, largest + 1))
        return configuration(settings={"max_crops": crops}, probes=probes)

    return batch_size_record(of(4, 20), of(int(claim.of[0]), round(20 * value)))


def replicated(value: float) -> Any:
    def of(key: str, largest: int) -> Any:
        probes = tuple(probe(each, limit=largest) for each in (largest, largest + 1))
        return configuration(key=key, probes=probes)

    return batch_size_record(of(AS_IT_IS, 20), of(UNDER_DDP, round(20 * value)))


def gained(claim: Claim, value: float) -> Any:
    size = int(claim.of[0])
    return batch_size_record(configuration(sweep=sweep({1: 0.01, size: 0.01 * size / value})))


def staged(claim: Claim, value: float) -> Any:
    key = str(claim.of[0])
    sides = [measurement("result", 0.1 / value), measurement("before", 0.1, role="reference")]
    record = run_record()
    kept = [each for each in record.stages if each.key != key]
    return replace(record, stages=(*kept, stage(key, *sides)))


def moved(claim: Claim, value: float, rewritten: float | None = None) -> Any:
    """A step whose operands would take such a share of it, and those that must be moved."""
    nbytes = 0.9e12 * 0.34
    record = run_record(pair("full_model", 0.34, 0.3395, 396, nbytes=value * nbytes))
    state = steps.LARGEST_CACHE_BYTES + (value if rewritten is None else rewritten) * nbytes / 2
    parameters = round(state / steps.STATE_BYTES_PER_WEIGHT)
    return replace(record, workload=replace(record.workload, parameters=parameters))


# What makes a record whose number is the given one, by reader.
MAKERS: dict[Callable[..., Any], Make] = {
    table.speedup: tried,
    table.time_saved: tried,
    table.ladder_speedup: lambda claim, value: optimize_record(),
    table.density: dense,
    table.per_process: shared,
    table.fitting_answers: answered,
    table.wait_ratio: waited,
    table.utilization: lambda claim, value: with_utilization(
        tried(claim, watts=(200.0, 200.0)), 0.4, 0.4 * value
    ),
    table.peak: lambda claim, value: tried(claim, peaks=(1e9, 1e9 * value)),
    table.watts: lambda claim, value: tried(claim, watts=(200.0, 200.0 * value)),
    table.tensors_saved: lambda claim, value: tried(
        claim,
        facts={
            "before_peak_bytes": 5e9,
            "after_peak_bytes": 5e9 - 1e9 * value,
            "vocabulary_tensor_bytes": 1e9,
        },
    ),
    table.full_precision_share: lambda claim, value: tried(
        replace(claim, of=("mixed_precision",)), facts={"fp32_time_share": value}
    ),
    table.loop_share: mapped,
    steps.ranks_gain: lambda claim, value: scaling_record(
        Losses(communication=0.26 / value - 0.13), gpus=2
    ),
    steps.communication_share: lambda claim, value: scaling_record(
        Losses(compute=0.1 * (1 - value), communication=0.1 * value, input=0.0), gpus=2
    ),
    steps.rarer_evaluation: evaluated,
    steps.without_shared_memory: linked,
    steps.stage: staged,
    steps.moving_share: moved,
    table.batch_gain: gained,
    table.doubled_memory: lambda claim, value: grown(value),
    table.crops_ratio: cropped,
    table.ddp_ratio: lambda claim, value: replicated(value),
    table.knee_of_largest: lambda claim, value: batch_size_record(
        configuration(sweep=sweep({1: 0.01, 25: 0.011} if value == 1 else {1: 0.01, 25: 0.25}))
    ),
}


def made(source: Source, claim: Claim, value: float) -> Any:
    """A record of the claim's source, measured on a GPU, whose number is this one."""
    part = MAKERS[claim.read](claim, value)
    if claim.read is table.ladder_speedup:
        part = replace(part, rungs=(rung("a", 1.1), rung("b", value)))
    if isinstance(part, Comparison):
        whole = scaling_record(comparisons=[part], gpus=2)
        part = whole if source.kind is ScalingRecord else optimize_record(part, gpus=1)
    elif isinstance(part, LaunchMap):
        part = optimize_record(maps=[part], gpus=1)
    if source.workloads:
        part = replace(part, workload=replace(part.workload, name=source.workloads[0]))
    return on(part, 1)


def on(record: Any, gpus: int) -> Any:
    return replace(record, header=replace(record.header, machine=machine(gpus)))


def inside(claim: Claim) -> float:
    low, high = claim.expected
    if claim.expected == table.MOST:
        return 0.8
    if high == math.inf:
        return (low + 1) / 2 if 0.5 < low < 1 else 1.5 * low
    return (low + high) / 2


def outside(claim: Claim) -> float:
    low, high = claim.expected
    if claim.expected == ALL:
        return 0.0
    return 0.5 * low if high == math.inf else 1.5 * high


def find(id_: str) -> Claim:
    return next(claim for _, claim in EVERY if claim.id == id_)


def result(record: Any, claim: Claim) -> Result:
    (found,) = [each for each in judge_claims(CLAIMS, [record]) if each.claim is claim]
    return found


def experiment(ratio: float, expected: tuple[float, float] = MORE, **options: Any) -> Result:
    """One claim about one experiment of the recurrent model."""
    claim = Claim("000-00", "it is faster", expected, table.speedup, ("batch_256",))
    record = optimize_record(compare("batch_256", ratio, **options), gpus=1)
    record = replace(record, workload=replace(record.workload, name="timeseries"))
    return judge_claims({table.SERIES: [claim]}, [record])[0]


@pytest.mark.parametrize(("source", "claim"), EVERY, ids=IDS)
def test_every_claim_can_be_confirmed_and_refuted(source: Source, claim: Claim) -> None:
    confirmed = result(made(source, claim, inside(claim)), claim)
    assert confirmed.verdict == "CONFIRMED", confirmed
    refuted = result(made(source, claim, outside(claim)), claim)
    assert refuted.verdict == "REFUTED", refuted


@pytest.mark.parametrize(("source", "claim"), EVERY, ids=IDS)
def test_a_cpu_never_decides_a_claim_about_gpus(source: Source, claim: Claim) -> None:
    for value in (inside(claim), outside(claim)):
        found = result(on(made(source, claim, value), 0), claim)
        assert (found.verdict == "NOT DECIDED HERE") == (claim.device == "gpu")
        assert found.found is not None, "the number is shown all the same"


@pytest.mark.parametrize(("source", "claim"), EVERY, ids=IDS)
def test_what_is_not_measured_has_a_reason(source: Source, claim: Claim) -> None:
    full = made(source, claim, inside(claim))
    parts = ("comparisons", "maps", "stages", "configurations", "series", "trials", "rungs")
    empty = replace(full, **{name: () for name in parts if hasattr(full, name)})
    found = result(empty, claim)
    assert (found.verdict, found.found) == ("NOT MEASURED HERE", None)
    assert found.reason
    (missing,) = judge_claims({source: [claim]}, [])
    assert missing.reason == f"needs `{source.command}`"


def test_the_ids_are_those_of_the_reports() -> None:
    ids = [claim.id for _, claim in EVERY]
    assert all(0 <= int(report) <= 4 for report, _ in (each.split("-") for each in ids))
    assert len({(claim.id, claim.sentence) for _, claim in EVERY}) == len(EVERY)


def test_an_interval_across_the_edge_decides_nothing() -> None:
    wide = experiment(1.2, (1.2, 1.5), noise=0.02)
    assert (wide.verdict, wide.found is not None) == ("INCONCLUSIVE", True)
    few = experiment(1.3, (1.2, 1.5), blocks=3)
    assert (few.verdict, few.reason) == ("INCONCLUSIVE", "too few blocks for an interval")


def test_what_the_family_does_not_prove_confirms_no_gain() -> None:
    """Seven blocks prove one effect, but not one among forty."""
    claim = Claim("000-00", "it is faster", MORE, table.speedup, ("batch_256",))
    same = replace(claim, expected=SAME)
    others = [compare(f"other_{n}", 1.0, blocks=7) for n in range(39)]
    record: OptimizeRecord = optimize_record(compare("batch_256", 1.3, blocks=7), *others, gpus=1)
    record = replace(record, workload=replace(record.workload, name="timeseries"))
    for each in (claim, same):
        (found,) = judge_claims({table.SERIES: [each]}, [record])
        assert found.verdict == "INCONCLUSIVE"
        assert "Holm" in found.reason
    slower = replace(claim, expected=(2.0, 3.0))
    assert judge_claims({table.SERIES: [slower]}, [record])[0].verdict == "REFUTED"


@pytest.mark.parametrize("change", [{"source": "stub"}, {"effort": "smoke"}])
def test_a_fake_and_a_smoke_run_say_nothing(change: dict[str, Any]) -> None:
    source, claim = EVERY[0]
    record = made(source, claim, inside(claim))
    fake = replace(record, header=replace(record.header, **change))
    assert result(fake, claim).reason.startswith("needs ")


def test_every_record_that_measured_a_claim_has_a_row() -> None:
    source, claim = EVERY[0]
    first, second = (made(source, claim, value) for value in (inside(claim), outside(claim)))
    rows = [each for each in judge_claims(CLAIMS, [first, second]) if each.claim is claim]
    assert [each.verdict for each in rows] == ["CONFIRMED", "REFUTED"]


def test_a_disturbed_plan_decides_nothing() -> None:
    plan = find("000-34")
    record = optimize_record(tried(plan, 2.5), gpus=1)
    record = replace(record, workload=replace(record.workload, name="vqa"))
    throttled = replace(tried(plan, 2.5), status="invalid", reason="the clock fell")
    disturbed = replace(record, comparisons=(throttled,))
    assert result(disturbed, plan).reason == "plan_a: the clock fell"


def test_operands_that_a_cache_may_hold_decide_nothing() -> None:
    """All of them are many, those that must be moved are few."""
    claim = find("003-94")
    record = moved(claim, 0.8, rewritten=0.3)
    found = result(record, claim)
    assert found.verdict == "INCONCLUSIVE"
    assert found.found is not None
    assert found.found.value.low == pytest.approx(0.3, rel=0.02)
    assert found.found.value.high == pytest.approx(0.8, rel=0.02)
    small = replace(record, workload=replace(record.workload, parameters=1_000_000))
    value = result(small, claim).found
    assert value is not None
    assert value.value.low == 0, "a small model stays in the cache"


@pytest.mark.parametrize("job", [bert.WORKLOAD, dgca.WORKLOAD], ids=lambda job: job.name)
def test_the_optimizer_rewrites_a_state_for_every_weight(job: Workload) -> None:
    """What a step must move counts all of them, as float32."""
    assert job.name in table.RUN.workloads
    model = job.model.build(job.sizes["tiny"])
    loss = job.model.loss(model, job.synthetic_batch(job.sizes["tiny"], torch.device("cpu")))
    weights = list(model.parameters())
    assert len(torch.autograd.grad(loss, weights)) == len(weights)
    assert {each.dtype for each in weights} == {torch.float32}


@pytest.mark.parametrize("processes", [2, 4, 8])
def test_linear_scaling_is_judged_by_the_processes_that_ran(processes: int) -> None:
    claim = find("000-26")
    verdicts = []
    for speedup in (processes, processes / 2):
        record = optimize_record(shared(claim, speedup / processes, processes), gpus=1)
        named = replace(record, workload=replace(record.workload, name="vqa"))
        verdicts.append(result(named, claim).verdict)
    assert verdicts == ["CONFIRMED", "REFUTED"]


def test_a_gain_that_the_family_does_not_prove_is_no_linear_scaling() -> None:
    claim = find("000-26")
    scaled = compare("processes_2", 2.0, blocks=7, facts={"after_processes": 2})
    others = [compare(f"other_{n}", 1.0, blocks=7) for n in range(39)]
    record = optimize_record(scaled, *others, gpus=1)
    named = replace(record, workload=replace(record.workload, name="vqa"))
    found = result(named, claim)
    assert found.verdict == "INCONCLUSIVE"
    assert "Holm" in found.reason


@pytest.mark.parametrize("id_", ["000-17", "000-18", "000-19"])
def test_built_in_questions_say_nothing_about_real_answers(id_: str) -> None:
    claim = find(id_)
    record = answered(claim, 0.2, "hand-written questions on four photographs")
    found = result(replace(record, workload=replace(record.workload, name="vqa")), claim)
    assert (found.verdict, found.found) == ("NOT DECIDED HERE", None)
    assert "built in" in found.reason


def test_only_nccl_with_shared_memory_tells_what_it_is_worth() -> None:
    claim = find("003-09")
    trials = [trial("as it is", 1e9), trial("NCCL_SHM_DISABLE=1", 1e9)]
    gloo = result(bandwidth_record(trials=trials), claim)
    assert (gloo.verdict, gloo.found) == ("NOT DECIDED HERE", None)
    assert "gloo" in gloo.reason
    off = gpu_record(trials=trials, environment={"NCCL_SHM_DISABLE": "1"})
    assert result(off, claim).verdict == "NOT DECIDED HERE"
    hung = trial("NCCL_SHM_DISABLE=1", None, "hung", "no answer within 10 s")
    untold = result(gpu_record(trials=[trials[0], hung]), claim)
    assert (untold.verdict, untold.found) == ("NOT MEASURED HERE", None)
    assert "no answer within 10 s" in untold.reason


def test_a_cpu_that_cannot_measure_a_claim_about_gpus_is_not_asked_to() -> None:
    claim = find("003-46")
    found = result(on(optimize_record(tried(claim)), 0), claim)
    assert (found.verdict, found.found) == ("NOT DECIDED HERE", None)
    assert "GPU" in found.reason
