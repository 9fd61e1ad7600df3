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
    assert kinds(run_record(), "cause") == kinds(run_record(), "cannot tell") == set()
    assert kinds(run_record(), "excluded") == {each.kind for each in SUSPECTS}


def test_every_finding_has_a_sentence_and_evidence_and_every_cause_advice() -> None:
    for record in (run_record(), slow_full_model(), slowed_input(), slow_half(), on_cpu()):
        for each in judge(record):
            assert each.sentence.endswith(".")
            assert each.evidence
            assert each.advice or each.verdict != "cause"


def fed(seconds: float, noise: float) -> RunRecord:
    return run_record(pair("real_data", seconds, 0.3353, 398, noise=noise))


def powered(watts: float, utilization: float = 0.99) -> RunRecord:
    readings = {"watts": Reading(watts), "utilization": Reading(utilization)}
    return use_gpu(run_record(), "full_model", **readings)


def computing(share: float, noise: float = 0.002, slots: int = 10) -> RunRecord:
    """A step at so large a share of the measured ceiling."""
    record = run_record(pair("full_model", 0.34, 0.3395, 396, flops=share * 40e12 * 0.34))
    return with_timing(record, "full_model", timing(0.34, noise=noise, slots=slots))


def moving(share: float, noise: float = 0.002) -> RunRecord:
    """A step whose operands take so large a share of it at the measured rate of memory."""
    record = run_record(pair("full_model", 0.34, 0.3395, 396, nbytes=share * 0.9e12 * 0.34))
    return with_timing(record, "full_model", timing(0.34, noise=noise))


def unknown_data() -> RunRecord:
    workload = replace(run_record().workload, data=None, data_reason="the file was not given")
    return replace(run_record(), workload=workload)


def stored(workers: int, other: float = 12.0) -> RunRecord:
    """A loader whose mmap, which the real-data stage uses, takes 60 ms."""
    return run_record(
        loader_stage({(0, "mmap"): 60.0, (workers, "mmap"): 60.0, (0, "preload"): other})
    )


JUDGED: list[tuple[str, RunRecord, str, str]] = [
    ("input_bound", slowed_input(), "cause", "90.0"),  # the loader alone, at its best
    ("input_bound", fed(0.3353, 0.002), "excluded", "resident batches"),
    ("input_bound", fed(0.3420, 0.002), "excluded", ""),  # 2 %: there, but not worth a change
    ("input_bound", fed(0.3800, 0.002), "cause", ""),
    ("input_bound", fed(0.3700, 0.200), "cannot tell", ""),
    ("input_bound", fed(0.3353, 0.200), "cannot tell", ""),
    (
        "input_bound",
        with_timing(run_record(), "real_data", timing(0.9, slots=4)),
        "cannot tell",
        "no interval",
    ),
    ("loader_workers", slowed_input(), "cause", ""),
    ("around_backbone", slow_full_model(), "cause", "full model minus backbone"),
    ("low_compute", slow_full_model(), "cause", "17."),
    ("power", slow_full_model(), "cause", "44 % of the power limit"),
    ("power", powered(400), "excluded", "training 402 W"),
    ("power", powered(270), "flag", ""),
    ("power", powered(150), "cause", "99 % utilization"),
    ("power", powered(150, 0.40), "cause", "40 % utilization"),
    (
        "power",
        use_gpu(run_record(), "full_model", watts=Reading(None, "no permission")),
        "cannot tell",
        "no permission",
    ),
    ("no_fast_half", slow_half(), "cause", "mixed precision minus full precision: 264"),
    # One of the two types is emulated, and the step was timed in the other one.
    ("no_fast_half", run_record(ceilings_stage(half=10e12)), "excluded", "9.99 TFLOP/s"),
    (
        "no_fast_half",
        run_record(ceilings_stage(half=10e12), stage("precision", status="failed", reason="no")),
        "cause",
        "9.99 TFLOP/s",
    ),
    ("padding", run_record(padding_share=0.30), "excluded", "30 %"),
    ("padding", run_record(padding_share=0.31), "cause", "31 %"),
    ("padding", unknown_data(), "cannot tell", "the file was not given"),
    ("storage", stored(4), "cause", "mmap: "),
    ("loader_workers", stored(4), "excluded", ""),
    ("low_compute", computing(0.29), "cause", "empty operation costs 4.0"),
    ("low_compute", computing(0.29, noise=0.2), "cannot tell", ""),  # may be above as well
    ("low_compute", computing(0.31, noise=0.2), "cannot tell", ""),
    ("low_compute", computing(0.31), "flag", ""),
    ("low_compute", computing(0.61), "excluded", ""),
    (
        "low_compute",
        computing(0.61, noise=0.2),
        "flag",
        "",
    ),  # no cause, but not surely innocent
    ("low_compute", computing(0.10, slots=4), "cannot tell", ""),  # no interval at all
    ("low_compute", computing(0.90, slots=4), "cannot tell", ""),
    (
        "low_compute",
        # A noisy ceiling widens the share too.
        with_timing(computing(0.29), "ceilings", timing(1e12 / 40e12, noise=0.2)),
        "cannot tell",
        "",
    ),
    ("memory_bound", moving(0.4), "excluded", "less what caches save"),
    ("memory_bound", moving(0.8), "flag", "would take 79.9"),
    ("memory_bound", moving(0.5, noise=0.2), "cannot tell", ""),
    (
        "backward_and_optimizer",
        run_record(pair("training", 0.9, 0.1116, 402)),
        "cause",
        "neither loss nor dropout",  # the forward that is subtracted has no loss either
    ),
]


def test_every_suspect_can_be_accused_and_excluded() -> None:
    accused = {kind for kind, _, verdict, _ in JUDGED if verdict in ("cause", "flag")}
    assert accused == {each.kind for each in SUSPECTS}
    # A healthy run excludes all of them: see above.


@pytest.mark.parametrize(("kind", "record", "verdict", "words"), JUDGED)
def test_each_suspect_is_judged_by_its_interval(
    kind: str, record: RunRecord, verdict: str, words: str
) -> None:
    finding = found(record, kind)
    assert finding.verdict == verdict
    assert words in finding.evidence


def test_power_tells_what_the_gpu_waits_for() -> None:
    assert "some kernel is always in flight" in found(powered(150), "power").sentence
    assert "waits for the host" in found(powered(150, 0.40), "power").sentence
    assert "power" not in {each.kind for each in judge(on_cpu())}
    assert found(slow_full_model(), "around_backbone").severity == "critical"


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
    machine = replace(record.header.machine, device=device)
    record = replace(record, header=replace(record.header, machine=machine))
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


def test_drift_that_both_sides_share_cancels() -> None:
    drift = [1 + 0.3 * block for block in range(10)]
    slow = replace(timing(0.1), slot_seconds=tuple(0.44 * each for each in drift))
    fast = replace(timing(0.1), slot_seconds=tuple(0.40 * each for each in drift))
    cost = derive.difference(measurement("a", slow), measurement("b", fast))
    assert cost.share.center == pytest.approx(1 / 11)
    assert cost.share.half_width == pytest.approx(0)


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


FOUR = {0: 80.0, 2: 50.0, 4: 10.0, 8: 50.0}


@pytest.mark.parametrize(
    ("slots", "milliseconds", "verdict", "words"),
    [
        (7, {0: 80.0, 4: 10.0}, "flag", "of a step"),
        # The same two, but chosen after seeing four.
        (
            7,
            FOUR,
            "cannot tell",
            "largest of 6 pairs can be proven from 8 blocks on, this run has 7",
        ),
        (8, FOUR, "flag", "the largest of 6 pairs, so its interval is one of 99.2 %"),
        # That no setting matters needs no wider interval.
        (
            6,
            {0: 10.0, 2: 10.1, 4: 10.2, 8: 10.3},
            "excluded",
            "interval of each of 6 pairs is within",
        ),
    ],
)
def test_the_largest_of_many_gaps_needs_a_wider_interval(
    slots: int, milliseconds: dict[int, float], verdict: str, words: str
) -> None:
    finding = found(loader_of(slots, milliseconds), "loader_workers")
    assert finding.verdict == verdict
    assert words in finding.evidence
    assert ("pairs" in finding.evidence) == (len(milliseconds) > 2)


def test_a_mixed_step_is_held_against_the_ceiling_of_its_own_precision() -> None:
    record = run_record()
    mixed = derive.result(record, "precision")
    assert mixed is not None
    assert derive.attainable_share(record, mixed).value == pytest.approx(0.675, abs=0.01)
    share = derive.attainable_share(run_record(without=["ceilings"]), mixed)
    assert share == Reading(None, "no measured matrix-product ceiling for bfloat16")


ALL_BUT_INFERENCE = ["training", "precision", "loader", "real_data", "full_model"]
IN_BFLOAT16 = pair("real_data", 0.165, 0.1629, 350, dtype="bfloat16 autocast")


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (slow_full_model(), "394 ms of it is the model around the backbone"),
        (slowed_input(), "fix this first"),
        (with_timing(run_record(), "real_data", timing(0.9, slots=4)), "too uncertain"),
        (
            run_record(without=["full_model"]),
            "A training step of bert (seed, batch 128, length 128, float32) takes 335",
        ),
        (run_record(without=ALL_BUT_INFERENCE), "An inference step of bert"),
        (
            run_record(
                stage("inference", status="failed", reason="out of memory."),
                without=ALL_BUT_INFERENCE,
            ),
            "No step could be measured: the stage inference failed (out of memory).",
        ),
        (replace(run_record(), stages=(), complete=False), "measured: the run ended before"),
        # Milliseconds of another precision or of a slower stage are never part of the step.
        (
            run_record(IN_BFLOAT16, without=["full_model"]),
            "in float32, 67 % of a training step is loss, backward and optimizer",
        ),
        (
            run_record(pair("real_data", 0.200, 0.199, 398), without=["full_model"]),
            "67 % of a training step is loss, backward and optimizer",
        ),
    ],
)
def test_the_answer_follows_what_was_measured(record: RunRecord, words: str) -> None:
    assert words in tell(record)


def test_two_gpus_add_up() -> None:
    both = measurement("x", 0.1, gpus=[gpu_use(400), gpu_use(200, gpu=1)])
    assert derive.watts(both) == Reading(600.0)
    assert derive.power_share(both).value == pytest.approx(600 / 900)
    assert derive.joules_per_sample(both).value == pytest.approx(600 * 0.1 / 128, rel=0.01)
    blind = replace(both.gpus[1], watts=Reading(None, "lost"))
    assert derive.watts(replace(both, gpus=(both.gpus[0], blind))) == Reading(None, "lost")
    assert derive.watts(measurement("x", 0.1)) == Reading(None, NO_GPU)
