"""Does every record get the verdict that its numbers deserve, and no other?"""

from __future__ import annotations

from dataclasses import replace

import pytest

from diagnose.analyze import derive
from diagnose.analyze.run.rules import SUSPECTS, judge
from diagnose.records.header import Reading
from diagnose.records.run import RunRecord
from tests.support.records.parts import NO_GPU, gpu_use, measurement, stage, timing
from tests.support.records.run import (
    ceilings_stage,
    loader_stage,
    on_cpu,
    pair,
    run_record,
    slow_full_model,
    slow_half,
    slowed_input,
    use_gpu,
    with_timing,
)
from tests.support.verdicts import found, kinds, tell


def test_a_healthy_run_has_no_cause_and_many_alibis() -> None:
    record = run_record()
    assert kinds(record, "cause") == set()
    assert kinds(record, "excluded") == {
        "around_backbone",
        "input_bound",
        "loader_workers",
        "storage",
        "padding",
        "no_fast_half",
        "low_compute",
        "power",
        "backward_and_optimizer",
    }
    assert kinds(record, "cannot tell") == set()


def test_every_finding_has_a_sentence_and_evidence() -> None:
    for record in (run_record(), slow_full_model(), slowed_input(), slow_half(), on_cpu()):
        for each in judge(record):
            assert each.sentence.endswith(".")
            assert each.evidence


def test_waiting_for_data_is_the_cause() -> None:
    finding = found(slowed_input(), "input_bound")
    assert (finding.verdict, finding.severity) == ("cause", "warning")
    assert "334" in finding.evidence
    assert "90.0" in finding.evidence  # the loader alone, at its best
    assert found(slowed_input(), "loader_workers").verdict == "cause"
    assert "fix this first" in tell(slowed_input())


@pytest.mark.parametrize(
    ("seconds", "noise", "verdict"),
    [
        (0.3353, 0.002, "excluded"),
        (0.3420, 0.002, "excluded"),  # 2 %: there, but not worth a change
        (0.3800, 0.002, "cause"),
        (0.3700, 0.200, "cannot tell"),
        (0.3353, 0.200, "cannot tell"),
    ],
)
def test_the_input_is_judged_by_its_interval(seconds: float, noise: float, verdict: str) -> None:
    record = run_record(pair("real_data", seconds, 0.3353, 398, noise=noise))
    assert found(record, "input_bound").verdict == verdict


@pytest.mark.parametrize(
    ("device", "workers", "milliseconds", "verdict"),
    [
        ("cpu", 0, 1.0, "excluded"),  # loading in the process costs what it takes alone
        ("cpu", 0, 40.0, "cannot tell"),  # and that may be much
        ("cpu", 2, 1.0, "cannot tell"),  # workers can disturb the step
        ("cuda", 0, 1.0, "cannot tell"),  # the copy to the device is not in it
    ],
)
def test_a_noisy_comparison_may_be_bounded_by_the_loader_alone(
    device: str, workers: int, milliseconds: float, verdict: str
) -> None:
    record = run_record(
        pair("real_data", 0.33, 0.33, 398, noise=0.2, workers=workers, storage="mmap"),
        loader_stage({(workers, "mmap"): milliseconds}),
    )
    record = replace(
        record, header=replace(record.header, machine=replace(record.header.machine, device=device))
    )
    assert found(record, "input_bound").verdict == verdict


def test_a_large_cost_whose_interval_reaches_zero_is_no_cause() -> None:
    before = [1.0] * 10
    after = [0.9, 1.5, 0.9, 1.5, 0.9, 1.5, 0.9, 1.5, 0.9, 0.9]
    record = run_record()
    fed = next(each for each in record.stages if each.key == "real_data")
    slow, fast = (
        replace(each, timing=replace(each.timing, slot_seconds=tuple(slots)))
        for each, slots in zip(fed.measurements, (after, before), strict=True)
    )
    record = run_record(replace(fed, measurements=(slow, fast)))
    cost = derive.stage_difference(record, "real_data")
    assert cost is not None
    assert cost.share.low is not None
    assert cost.share.low < 0 < 0.05 < cost.share.center
    assert found(record, "input_bound").verdict == "cannot tell"


def test_too_few_blocks_prove_nothing() -> None:
    record = with_timing(run_record(), "real_data", timing(0.9, slots=4))
    finding = found(record, "input_bound")
    assert finding.verdict == "cannot tell"
    assert "no interval" in finding.evidence
    assert "too uncertain" in tell(record)


def test_drift_that_both_sides_share_cancels() -> None:
    drift = [1 + 0.3 * block for block in range(10)]
    slow = replace(timing(0.1), slot_seconds=tuple(0.44 * each for each in drift))
    fast = replace(timing(0.1), slot_seconds=tuple(0.40 * each for each in drift))
    cost = derive.difference(measurement("a", slow), measurement("b", fast))
    assert cost.share.center == pytest.approx(1 / 11)
    assert cost.share.half_width == pytest.approx(0)


def test_the_model_around_the_backbone_is_the_cause() -> None:
    record = slow_full_model()
    finding = found(record, "around_backbone")
    assert (finding.verdict, finding.severity) == ("cause", "critical")
    assert found(record, "low_compute").verdict == "cause"
    waits = found(record, "power")
    assert waits.verdict == "cause"
    assert "44 %" in waits.evidence
    assert "training 402 W" in waits.evidence
    assert "394 ms of it is the model around the backbone" in tell(record)


@pytest.mark.parametrize(
    ("watts", "utilization", "verdict", "word"),
    [
        (400, 0.99, "excluded", "not the cause"),
        (270, 0.99, "flag", "less power"),
        (150, 0.99, "cause", "some kernel is always in flight"),
        (150, 0.40, "cause", "waits for the host"),
    ],
)
def test_power_tells_whether_the_gpu_waits(
    watts: float, utilization: float, verdict: str, word: str
) -> None:
    record = use_gpu(
        run_record(), "full_model", watts=Reading(watts), utilization=Reading(utilization)
    )
    assert found(record, "power").verdict == verdict
    assert word in found(record, "power").sentence


def test_power_that_cannot_be_read_is_not_guessed() -> None:
    record = use_gpu(run_record(), "full_model", watts=Reading(None, "no permission"))
    assert found(record, "power").verdict == "cannot tell"
    assert "no permission" in found(record, "power").evidence
    assert "power" not in {each.kind for each in judge(on_cpu())}


def test_slow_half_precision_is_told_by_product_and_by_step() -> None:
    finding = found(slow_half(), "no_fast_half")
    assert finding.verdict == "cause"
    assert "bfloat16 matrix product runs at 9.99 TFLOP/s" in finding.evidence
    assert "mixed precision minus full precision: 264" in finding.evidence
    only_product = found(run_record(ceilings_stage(half=10e12)), "no_fast_half")
    assert only_product.verdict == "cause"


@pytest.mark.parametrize(("share", "verdict"), [(0.30, "excluded"), (0.31, "cause")])
def test_padding(share: float, verdict: str) -> None:
    assert found(run_record(padding_share=share), "padding").verdict == verdict


def test_padding_of_unknown_data_is_unknown() -> None:
    record = run_record()
    workload = replace(record.workload, data=None, data_reason="the file was not given")
    finding = found(replace(record, workload=workload), "padding")
    assert (finding.verdict, finding.evidence) == ("cannot tell", "the file was not given")


def test_the_storage_matters_only_where_it_costs_part_of_a_step() -> None:
    slow = {(0, "mmap"): 60.0, (4, "mmap"): 60.0, (0, "preload"): 12.0, (4, "preload"): 12.0}
    finding = found(run_record(loader_stage(slow)), "storage")
    # The real-data stage of this run reads by mmap, so it pays.
    assert finding.verdict == "cause"
    assert "Use preload" in finding.advice
    assert found(run_record(loader_stage(slow)), "loader_workers").verdict == "excluded"


def loader_of(slots: int, milliseconds: dict[int, float]) -> RunRecord:
    """A loader by number of workers, measured in so many blocks."""
    measured = (
        measurement(
            f"{workers} workers",
            timing(each / 1e3, slots=slots, seed=workers),
            settings={"workers": workers, "storage": "mmap"},
        )
        for workers, each in milliseconds.items()
    )
    return run_record(stage("loader", *measured))


def test_the_largest_of_many_gaps_needs_a_wider_interval() -> None:
    planned = found(loader_of(7, {0: 80.0, 4: 10.0}), "loader_workers")
    assert planned.verdict == "flag"
    assert "pairs" not in planned.evidence
    # The same two, but chosen after seeing four.
    four = {0: 80.0, 2: 50.0, 4: 10.0, 8: 50.0}
    chosen = found(loader_of(7, four), "loader_workers")
    assert chosen.verdict == "cannot tell"
    assert "largest of 6 pairs can be proven from 8 blocks on, this run has 7" in chosen.evidence
    more = found(loader_of(8, four), "loader_workers")
    assert more.verdict == "flag"
    assert "the largest of 6 pairs, so its interval is one of 99.2 %" in more.evidence


def test_that_no_setting_matters_needs_no_wider_interval() -> None:
    finding = found(loader_of(6, {0: 10.0, 2: 10.1, 4: 10.2, 8: 10.3}), "loader_workers")
    assert finding.verdict == "excluded"
    assert "the interval of each of 6 pairs is within 5.0 % of a step" in finding.evidence


def test_the_advice_claims_only_what_was_compared() -> None:
    advice = found(slowed_input(), "input_bound").advice
    compared, _, untried = advice.partition(" here. ")
    assert "pinned" not in compared
    assert "this run did not compare them" in untried


def test_a_slow_loader_setting_that_is_not_in_use_is_no_cause() -> None:
    finding = found(
        run_record(loader_stage({(0, "mmap"): 80.0, (4, "mmap"): 12.0})), "loader_workers"
    )
    assert (finding.verdict, finding.severity) == ("flag", "info")


@pytest.mark.parametrize(
    ("flops", "verdict"), [(8.5e12, "excluded"), (6e12, "flag"), (2e12, "cause")]
)
def test_arithmetic_is_judged_against_the_measured_ceiling(flops: float, verdict: str) -> None:
    record = run_record(pair("full_model", 0.34, 0.3395, 396, flops=flops))
    assert found(record, "low_compute").verdict == verdict


@pytest.mark.parametrize(
    ("flops", "noise", "slots", "verdict"),
    [
        (0.29, 0.002, 10, "cause"),
        (0.29, 0.200, 10, "cannot tell"),  # it may as well be above the threshold
        (0.31, 0.200, 10, "cannot tell"),
        (0.31, 0.002, 10, "flag"),
        (0.61, 0.002, 10, "excluded"),
        (0.61, 0.200, 10, "flag"),  # surely no cause, but not surely innocent
        (0.10, 0.002, 4, "cannot tell"),  # no interval at all
        (0.90, 0.002, 4, "cannot tell"),
    ],
)
def test_arithmetic_is_judged_by_its_interval(
    flops: float, noise: float, slots: int, verdict: str
) -> None:
    record = run_record(pair("full_model", 0.34, 0.3395, 396, flops=flops * 40e12 * 0.34))
    record = with_timing(record, "full_model", timing(0.34, noise=noise, slots=slots))
    assert found(record, "low_compute").verdict == verdict


def test_a_noisy_ceiling_widens_the_share_too() -> None:
    quiet = run_record(pair("full_model", 0.34, 0.3395, 396, flops=0.29 * 40e12 * 0.34))
    noisy = with_timing(quiet, "ceilings", timing(1e12 / 40e12, noise=0.2))
    assert found(quiet, "low_compute").verdict == "cause"
    assert found(noisy, "low_compute").verdict == "cannot tell"


def test_an_empty_operation_is_told_per_operation() -> None:
    launch = measurement(
        "empty operation",
        timing(4e-3),
        samples=None,
        settings={"ceiling": "launch", "operations_per_step": 1000},
    )
    ceilings = ceilings_stage()
    kept = [each for each in ceilings.measurements if each.settings["ceiling"] != "launch"]
    record = run_record(
        replace(ceilings, measurements=(*kept, launch)),
        pair("full_model", 0.34, 0.3395, 396, flops=2e12),
    )
    assert "empty operation costs 4.0" in found(record, "low_compute").evidence


def test_a_mixed_step_is_held_against_the_ceiling_of_its_own_precision() -> None:
    record = run_record()
    mixed = derive.result(record, "precision")
    assert mixed is not None
    assert derive.attainable_share(record, mixed).value == pytest.approx(0.675, abs=0.01)
    without = run_record(without=["ceilings"])
    share = derive.attainable_share(without, mixed)
    assert (share.value, share.reason) == (
        None,
        "no measured matrix-product ceiling for bfloat16",
    )


def test_a_heavy_optimizer_is_the_cause() -> None:
    record = run_record(pair("training", 0.9, 0.1116, 402))
    finding = found(record, "backward_and_optimizer")
    assert finding.verdict == "cause"
    # The eval-mode forward that is subtracted has no loss either.
    assert finding.sentence.startswith("Loss, backward and optimizer take")
    assert "neither loss nor dropout" in finding.evidence


def test_the_answer_follows_what_was_measured() -> None:
    assert tell(run_record(without=["full_model"])).startswith(
        "A training step of bert (seed, batch 128, length 128, float32) takes 335"
    )
    inference = run_record(without=["training", "precision", "real_data", "full_model"])
    assert tell(inference).startswith("An inference step of bert")
    nothing = run_record(
        stage("inference", status="failed", reason="out of memory."),
        without=["training", "precision", "loader", "real_data", "full_model"],
    )
    assert tell(nothing) == (
        "No step could be measured: the stage inference failed (out of memory)."
    )
    empty = replace(run_record(), stages=(), complete=False)
    assert tell(empty).startswith("No step could be measured: the run ended before")


def test_milliseconds_of_another_precision_are_never_part_of_the_step() -> None:
    record = run_record(
        pair("real_data", 0.165, 0.1629, 350, dtype="bfloat16 autocast"), without=["full_model"]
    )
    assert "of it is" not in tell(record)
    assert "in float32, 67 % of a training step is loss, backward and optimizer" in tell(record)


def test_milliseconds_of_a_slower_stage_are_never_part_of_the_step() -> None:
    record = run_record(pair("real_data", 0.200, 0.199, 398), without=["full_model"])
    assert "of it is" not in tell(record)
    assert "67 % of a training step is loss, backward and optimizer" in tell(record)


def test_two_gpus_add_up() -> None:
    both = measurement("x", 0.1, gpus=[gpu_use(400), gpu_use(200, gpu=1)])
    assert derive.watts(both) == Reading(600.0)
    assert derive.power_share(both).value == pytest.approx(600 / 900)
    assert derive.joules_per_sample(both).value == pytest.approx(600 * 0.1 / 128, rel=0.01)
    blind = replace(both.gpus[1], watts=Reading(None, "lost"))
    assert derive.watts(replace(both, gpus=(both.gpus[0], blind))) == Reading(None, "lost")
    assert derive.watts(measurement("x", 0.1)) == Reading(None, NO_GPU)


def test_thousands_of_single_steps_still_have_percentiles() -> None:
    clock = timing(0.1, single_steps=20_000)
    bound = derive.percentile(clock, 0.99).value
    assert bound is not None
    assert 0.1 < bound < 0.1005
    few = derive.percentile(timing(0.1, single_steps=70), 0.99)
    assert (few.value, few.reason) == (None, "p99 needs 662 steps")


def test_the_rules_are_listed_once() -> None:
    assert len({each.kind for each in SUSPECTS}) == len(SUSPECTS)
