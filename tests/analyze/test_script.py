"""Are the causes judged by what was measured? Records made by hand, one fact changed in each."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from diagnose.analyze.script.rules import diagnose
from diagnose.analyze.script.words import advise
from diagnose.records import codec
from diagnose.records.diagnosis import ScriptFinding
from diagnose.records.header import Reading
from diagnose.records.script import (
    AGAIN,
    CAUSES,
    FROZEN,
    GARBAGE,
    PLAIN,
    Ceilings,
    Growth,
    Occasion,
    RankTimes,
    ScriptRecord,
    Window,
    replayed_name,
)
from tests.support.records.script import LINE, STEP, blocks, change, record, suspect


def causes(found: ScriptRecord) -> list[str]:
    return [each.cause for each in diagnose(found).findings]


def first(found: ScriptRecord, cause: str, verified: bool, gain_ms: float) -> ScriptFinding:
    """The first finding, which must be this one."""
    finding = diagnose(found).findings[0]
    assert (finding.cause, finding.verified) == (cause, verified)
    assert finding.gain_ms == pytest.approx(gain_ms, rel=0.05)
    assert finding.gain_ci[0] <= finding.gain_ms <= finding.gain_ci[1]
    return finding


def scattered(variant: str, *seconds: float) -> tuple[Window, ...]:
    """Unchanged blocks, and one window of the variant with so many more seconds in each."""
    return blocks() + tuple(
        Window(block, variant, 1, STEP + more) for block, more in enumerate(seconds * 2)
    )


def test_a_healthy_script_has_one_finding_that_names_its_busiest_line() -> None:
    busy, other = (
        suspect(
            key=str(line),
            site=replace(LINE, line=line),
            phase="forward",
            seconds=seconds,
            operator_seconds=seconds,
            backward_seconds=2 * seconds,
        )
        for line, seconds in ((7, 0.02), (9, 0.01))
    )
    diagnosis = diagnose(record(suspects=(other, busy)))
    (healthy,) = diagnosis.findings
    assert (healthy.cause, healthy.line, healthy.gain_ms) == ("compute", 7, 0.0)
    assert "10.0 % of the speed of large float32 products here" in healthy.evidence
    assert "train.py:7, 60.0 ms per step" in healthy.evidence
    assert sum(diagnosis.phases.values()) == pytest.approx(STEP * 1e3)


MANY = {"operator_seconds": 0.02, "launches": 900, "trips": 300}
UPDATE = {"operator_seconds": 0.03, "launches": 168, "trips": 24, "moved_bytes": 3 * 10**8}


@pytest.mark.parametrize(
    ("facts", "cause"),
    [
        ({"phase": "input"}, "input"),
        ({"phase": "evaluation"}, "evaluation"),
        ({"phase": "checkpoint"}, "host"),
        ({"feeds": True}, "input"),
        ({"repeats": True, "feeds": True}, "recompute"),
        ({"operator_seconds": 0.03, "copy_seconds": 0.02}, "transfer"),
        ({"operator_seconds": 0.03, "copy_seconds": 0.001}, "compute"),
        ({"operator_seconds": 0.03, "converted_seconds": 0.03, "feeds": True}, "transfer"),
        ({"operator_seconds": 0.03, "converted_seconds": 0.03, "syncs": 500}, "sync"),
        ({**MANY, "syncs": 500, "trips": 500}, "sync"),
        (MANY, "launch"),
        ({**MANY, "trips": 1}, "compute"),
        ({**MANY, "flops": 3 * 10**9}, "compute"),
        ({"phase": "forward", "torch_seconds": 0.028}, "compute"),
        ({"phase": "forward"}, "host"),
        ({"phase": "backward"}, "compute"),
        ({"phase": "optimizer", "trips": 1}, "compute"),
        ({**MANY, "phase": "optimizer"}, "optimizer"),
        ({"seconds": 0.004}, "compute"),
        # Operators that took a third of the time while they were mapped may take it all else.
        ({"operator_seconds": 0.01, "launches": 4}, "host"),
        ({"operator_seconds": 0.01, "launches": 4, "new_bytes": 30 * 10**6}, "compute"),
    ],
)
def test_what_a_line_suffers_from(facts: dict[str, Any], cause: str) -> None:
    ceilings = Ceilings(1e11, 5e10, 5e10, 1e10, fresh_bytes_per_second=1.5e9)
    assert causes(record(suspects=(suspect(**facts),), ceilings=ceilings)) == [cause]


@pytest.mark.parametrize(("needed", "expected"), [(10**8, "optimizer"), (25 * 10**7, "compute")])
def test_an_update_is_held_against_one_pass_over_its_tensors(needed: int, expected: str) -> None:
    own = suspect(phase="optimizer", **UPDATE)
    assert causes(record(suspects=(own,), update_bytes=needed)) == [expected]


def test_backward_time_belongs_to_the_line_that_caused_it() -> None:
    busy = suspect(**{**MANY, "operator_seconds": 0.009}, seconds=0.01, backward_seconds=0.04)
    first(record(suspects=(replace(busy, phase="forward"),)), "launch", False, 50)


def test_a_trial_gives_the_gain_and_what_was_seen_gives_the_line() -> None:
    seen = suspect(key="input", phase="input", site=replace(LINE, line=40))
    found = record(suspects=(seen,), changes=(change("input", site=replace(LINE, line=3)),))
    assert first(replace(found, windows=blocks(removed=0.06)), "input", True, 40).line == 40
    refuted = diagnose(replace(found, windows=blocks(removed=0.0995)))
    assert [each.cause for each in refuted.findings] == ["compute"]
    assert [each.cause for each in refuted.excluded] == ["input"]
    wide = scattered("removed", -0.01, -0.045, -0.02, -0.035, -0.015, -0.04)
    low, high = first(replace(found, windows=wide), "input", True, 30).gain_ci
    assert low < 25 < 31 < high  # within wide bounds what was seen is reported


def test_a_replayed_function_proves_its_own_line_only() -> None:
    slow = suspect(key="f")
    found = record(changes=(change("host", variant="replayed f"),), windows=blocks(replayed_f=0.07))
    first(replace(found, suspects=(slow,)), "host", True, 30)
    # A function that simply computes is no cause, however much leaving it out gives back.
    assert causes(replace(found, suspects=(replace(slow, operator_seconds=0.03),))) == ["compute"]


def test_replaying_batches_gives_back_no_more_than_was_seen_in_the_loader() -> None:
    """Kept batches are warm in the caches; a fast loader must not be blamed for that."""
    replayed = change("input", variant="replayed batches")
    found = record(changes=(replayed,), windows=blocks(replayed_batches=0.9 * STEP))
    for seconds, cause in ((0.002, "compute"), (0.01, "input")):
        seen = suspect(phase="input", seconds=seconds)
        assert causes(replace(found, suspects=(seen,))) == [cause]


@pytest.mark.parametrize(
    ("busy", "cause", "gain"),
    [(None, "host", 30), (0.5, "host", 30), (0.8, "host", 20), (0.96, "compute", 0)],
)
def test_what_is_hidden_behind_the_device_costs_nothing(
    busy: float | None, cause: str, gain: float
) -> None:
    reading = Reading(busy) if busy is not None else Reading(None, "not told")
    first(record(suspects=(suspect(),), device_busy=reading), cause, False, gain)
    # A loop of small operators is the device's work too.
    many = record(suspects=(suspect(**MANY),), device_busy=reading)
    assert causes(many) == ["launch"]


def test_a_larger_batch_must_give_back_more_than_other_changes() -> None:
    """Half a batch takes 90 ms where the whole takes 100: 80 are paid whatever the batch is."""
    found = record(changes=(change("batch", samples=0.5),), windows=blocks(removed=0.09))
    assert causes(replace(found, windows=blocks(removed=0.07))) == ["compute"]
    first(found, "batch", True, 0.75 * 80)
    # Of 60 ms that it gives back, three quarters of the other cause's 50 ms are not its own.
    host, batch = diagnose(replace(found, suspects=(suspect(seconds=0.05),))).findings
    assert (host.cause, batch.cause) == ("host", "batch")
    assert batch.gain_ms == pytest.approx(60 - 0.75 * 50, rel=0.03)


def test_a_change_of_replayed_steps_is_held_against_those() -> None:
    """What the loader took is gone on both sides, and cannot come back twice."""
    tried = change("batch", samples=0.5, against="replayed")
    diagnosis = diagnose(record(changes=(tried,), windows=blocks(replayed=0.02, removed=0.0167)))
    assert [each.cause for each in diagnosis.findings] == ["compute"]
    assert diagnosis.excluded[0].gain_ci[1] == pytest.approx(10, rel=0.05)


def test_what_is_uncertain_or_failed_is_neither_found_nor_excluded() -> None:
    wide = scattered("removed", 0.04, -0.04, 0.01, -0.01, 0.02, -0.02)
    failed = change("batch", failed="MemoryError: full")
    diagnosis = diagnose(record(changes=(change("precision"), failed), windows=wide))
    assert [each.cause for each in diagnosis.findings] == ["compute"]
    assert not diagnosis.excluded
    reasons = {each.cause: each.reason for each in diagnosis.cannot_tell}
    assert "--seconds" in reasons["precision"]
    assert "MemoryError: full" in reasons["batch"]


def test_what_is_within_the_noise_of_unchanged_steps_is_no_finding() -> None:
    found = record(changes=(change("transfer"),), windows=blocks(removed=0.09))
    assert causes(found) == ["transfer"]
    # Here the second unchanged window of every block is slower than the first.
    drifting = blocks(**{AGAIN: 1.3 * STEP, "removed": 1.02 * STEP})
    noisy = diagnose(replace(found, windows=drifting))
    assert [each.cause for each in noisy.findings] == ["compute"]
    assert "unchanged steps differ by 15.0 ms" in noisy.cannot_tell[0].reason


def test_samples_speak_where_unchanged_windows_differ_by_more_than_was_seen() -> None:
    seen = suspect(key=GARBAGE, seconds=0.03)
    tried = change("host", variant=FROZEN)
    steady = blocks(**{FROZEN: 0.99 * STEP})
    found = record(suspects=(seen,), changes=(tried,), windows=steady)
    assert causes(found) == ["compute"], "the trial refutes it"
    drifting = blocks(**{AGAIN: 2 * STEP, FROZEN: 1.3 * STEP})
    first(replace(found, windows=drifting), "host", False, 30)


def test_a_collection_that_the_script_asks_for_is_left_to_python() -> None:
    seen = suspect(key=GARBAGE, site=replace(LINE, code="gc.collect()"))
    (finding,) = diagnose(record(suspects=(seen,))).findings
    assert finding.advice.startswith("leave collecting to Python")
    (finding,) = diagnose(record(suspects=(suspect(key=GARBAGE),))).findings
    assert finding.advice.startswith("call gc.freeze()")


def test_lines_of_one_function_with_one_cause_are_one_finding() -> None:
    lines = [
        suspect(key=str(line), site=replace(LINE, line=line), seconds=seconds, repeats=True)
        for line, seconds in ((12, 0.03), (14, 0.01))
    ]
    assert first(record(suspects=tuple(lines)), "recompute", False, 40).line == 12


def test_one_line_speaks_for_all_that_are_not_the_cause() -> None:
    lines = [
        suspect(key=str(line), site=replace(LINE, line=line, function=str(line)), seconds=seconds)
        for line, seconds in enumerate((0.0002, 0.001, 0.0005))
    ]
    (excluded,) = diagnose(record(suspects=tuple(lines))).excluded
    assert excluded.cause == "host"
    assert "1.00 ms per step" in excluded.evidence


def test_double_precision_is_held_against_what_this_device_does() -> None:
    first(record(double_share=1.0, double_site=LINE), "precision", False, 50)
    assert causes(record(double_share=0.01, double_site=LINE)) == ["compute"]


def test_growth_needs_work_that_takes_longer_because_of_it_or_much_memory() -> None:
    growth = Growth(LINE, "history", True, 2e-4, 1e-4, 3e-4, 0.0)
    slower = record(
        suspects=(suspect(key="sum", seconds=0.002),), growth=replace(growth, suspect="sum")
    )
    assert "history grows" in first(slower, "growth", False, 20).evidence
    assert causes(record(growth=growth)) == ["compute"]
    still = replace(growth, seconds_per_step=0.0, seconds_low=0.0, seconds_high=0.0)
    assert causes(record(growth=still)) == ["compute"]
    assert causes(record(growth=replace(still, bytes_per_step=5e6))) == ["growth"]


def ranks(*alone: float) -> tuple[RankTimes, ...]:
    return tuple(
        RankTimes(
            rank,
            STEP,
            0.0,
            (suspect(key="extra", seconds=own / 2, site=replace(LINE, line=rank)),),
            tuple(
                Window(block, variant, 1, seconds)
                for block in range(12)
                for variant, seconds in {PLAIN: STEP, AGAIN: STEP, "removed": own}.items()
            ),
        )
        for rank, own in enumerate(alone)
    )


def test_the_slowest_rank_is_named_and_its_own_wait_is_the_wire() -> None:
    found = record(changes=(change("communication"),))
    # Balanced, each of both would take 75 ms.
    late = first(replace(found, ranks=ranks(0.05, 0.1)), "straggler", True, 25)
    assert late.line == 1
    assert "rank 1 takes 100 ms by itself, the others 50" in late.evidence
    assert f"it spends 25.0 ms more than they do at {LINE.file}:1" in late.evidence
    first(replace(found, ranks=ranks(0.06, 0.06)), "communication", True, 40)


def test_ranks_that_wait_in_every_window_are_told_apart_by_work_that_cannot_wait() -> None:
    wait = suspect(key="mean", phase="communication", seconds=0.002)
    uneven = tuple(
        replace(each, suspects=(replace(each.suspects[0], seconds=own), wait))
        for each, own in zip(ranks(STEP, STEP), (0.01, 0.03), strict=True)
    )
    found = record(changes=(change("communication"),), ranks=uneven)
    # The other rank works a third as long, so both would take two thirds of the step.
    late = first(found, "straggler", False, STEP * 1e3 / 3)
    assert "rank 1 works for 30.0 ms per step, the others for 10.0" in late.evidence
    even = replace(found, ranks=(uneven[0], replace(uneven[0], rank=1)))
    assert "straggler" not in causes(even)


def test_extra_work_of_one_rank_that_was_left_out_counts_whole_and_once() -> None:
    extra = suspect(key="extra", seconds=0.05)
    removed = replace(change("host"), variant=replayed_name("extra"), what="it was left out")
    windows = tuple(
        Window(block, variant, 1, seconds)
        for block in range(12)
        for variant, seconds in {PLAIN: STEP, AGAIN: STEP, removed.variant: 0.06}.items()
    )
    found = record(
        suspects=(extra,), changes=(change("communication"), removed), ranks=ranks(0.05, 0.1)
    )
    late = first(replace(found, windows=windows), "straggler", True, 40)
    assert "evenly spread it would save 25.0 ms; tried: it was left out" in late.evidence
    assert causes(replace(found, windows=windows)) == ["straggler"]


def test_every_cause_has_advice_and_records_survive_json() -> None:
    full = record(suspects=(suspect(),), ranks=ranks(0.1, 0.1))
    assert all(advise(cause, LINE, None, full) for cause in CAUSES)
    assert codec.from_dict(ScriptRecord, json.loads(codec.dumps(full))) == full


# --- what was tried proves, refutes or leaves open what was seen ---


def occasion(phase: Any, cost: float, left_out: int = 10) -> Occasion:
    with_it = tuple(STEP + cost + 1e-4 * (number % 3 - 1) for number in range(10))
    return Occasion(phase, "evaluate", "it was left out", 160, with_it, (STEP,) * left_out)


@pytest.mark.parametrize(
    ("phase", "cause"), [("evaluation", "evaluation"), ("checkpoint", "host"), ("logging", "host")]
)
def test_what_comes_now_and_then_is_proven_by_the_steps_without_it(phase: Any, cause: str) -> None:
    found = record(suspects=(suspect(phase=phase, seconds=0.02),))
    proven = replace(found, occasions=(occasion(phase, 0.2),))
    finding = first(proven, cause, True, 0.2 / 8 * 1e3)
    assert re.search(r"every 8 steps; every 4[01] steps it costs at most 5\.0 %", finding.advice)
    first(replace(found, occasions=(occasion(phase, 0.2, left_out=5),)), cause, False, 20)
    refuted = diagnose(replace(found, occasions=(occasion(phase, 0.001),)))
    assert [each.cause for each in refuted.findings] == ["compute"]
    assert cause in [each.cause for each in refuted.excluded]


def test_a_trial_that_is_too_noisy_leaves_the_estimate() -> None:
    seen = suspect()
    tried = change("host", variant=replayed_name(seen.key))
    noisy = scattered(tried.variant, -0.06, 0.04, 0.01, -0.03, 0.02, -0.01)
    first(record(suspects=(seen,), changes=(tried,), windows=noisy), "host", False, 30)


def test_short_windows_count_until_there_are_enough_long_ones() -> None:
    """The first rounds are short; here their windows promise nothing."""
    tried, short = change("host"), blocks(removed=STEP)
    long = tuple(
        replace(each, block=each.block + 12, steps=8, seconds=8 * each.seconds)
        for each in blocks(removed=0.6 * STEP)
    )
    first(record(changes=(tried,), windows=short + long), "host", True, 40)
    few = tuple(each for each in long if each.block < 12 + 6)
    assert causes(record(changes=(tried,), windows=short + few)) == ["compute"]


def test_kept_values_prove_a_wait_but_do_not_belittle_a_loop_around_the_reads() -> None:
    found = record(changes=(change("sync", variant="kept values"),))
    first(replace(found, windows=blocks(kept_values=0.07)), "sync", True, 30)
    seen = suspect(syncs=64, launches=128, trips=64, seconds=0.04, operator_seconds=0.02)
    around = replace(found, suspects=(seen,), windows=blocks(kept_values=0.09))
    first(around, "sync", False, 40)
    assert causes(around) == ["sync"]


def test_layers_of_a_deep_model_are_no_loop_over_elements() -> None:
    seen = suspect(launches=320, trips=80, seconds=0.04, operator_seconds=0.04, phase="forward")
    first(record(suspects=(seen,)), "launch", False, 39.5)
    assert causes(record(suspects=(replace(seen, layers=True),))) == ["compute"]


def test_a_line_pays_for_the_collection_of_what_it_makes() -> None:
    reads = suspect(syncs=64, launches=64, trips=64, seconds=0.02, operator_seconds=0.02)
    garbage = suspect(key=GARBAGE, seconds=0.03)
    found = first(record(suspects=(reads, garbage)), "sync", False, 50)
    assert "garbage collector takes 30.0 ms more there" in found.evidence
    elsewhere = replace(garbage, site=replace(LINE, function="other"))
    first(record(suspects=(reads, elsewhere)), "host", False, 30)


def test_weights_that_are_updated_by_hand_are_an_update() -> None:
    seen = suspect(launches=320, trips=80, seconds=0.04, operator_seconds=0.04)
    first(record(suspects=(seen,)), "launch", False, 39.5)
    first(record(suspects=(replace(seen, updates=80),)), "optimizer", False, 39.5)


def test_a_snapshot_of_the_weights_is_work_of_the_host_and_no_batch() -> None:
    seen = suspect(launches=12, seconds=0.04, operator_seconds=0.04)
    copied = replace(seen, copy_seconds=0.03)
    first(record(suspects=(copied,)), "transfer", False, 40)
    first(record(suspects=(replace(copied, snapshot_seconds=0.03),)), "host", False, 40)


def test_python_that_works_on_values_is_not_blamed_on_reading_them() -> None:
    seen = suspect(syncs=35, launches=2, trips=64, seconds=0.04, operator_seconds=0.0001)
    first(record(suspects=(seen,)), "host", False, 39.9)
