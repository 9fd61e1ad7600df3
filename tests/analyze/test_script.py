"""Are the causes judged by what was measured? Records made by hand, one fact changed in each."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from diagnose.analyze.script.rules import diagnose
from diagnose.analyze.script.words import advise
from diagnose.records.codec import to_dict
from diagnose.records.script import (
    AGAIN,
    CAUSES,
    PLAIN,
    Ceilings,
    Growth,
    RankTimes,
    ScriptRecord,
    Window,
)
from diagnose.render.script import summarize
from tests.support.records.script import LINE, STEP, blocks, change, record, suspect


def causes(found: ScriptRecord) -> list[str]:
    return [each.cause for each in diagnose(found).findings]


def test_a_healthy_script_has_one_finding_that_says_how_near_the_ceiling_is() -> None:
    diagnosis = diagnose(record())
    assert [each.cause for each in diagnosis.findings] == ["compute"]
    assert diagnosis.findings[0].gain_ms == 0
    assert "10 % of the speed of a large float32 matrix product" in diagnosis.findings[0].evidence
    assert sum(diagnosis.phases.values()) == pytest.approx(STEP * 1e3)


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
        ({"operator_seconds": 0.02, "syncs": 500, "launches": 900, "trips": 500}, "sync"),
        ({"operator_seconds": 0.02, "launches": 900, "trips": 300}, "launch"),
        ({"operator_seconds": 0.02, "launches": 900, "trips": 1}, "compute"),
        (
            {"operator_seconds": 0.02, "launches": 900, "trips": 300, "flops": 3 * 10**9},
            "compute",
        ),
        ({"phase": "forward", "torch_seconds": 0.028}, "compute"),
        ({"phase": "forward"}, "host"),
        ({"phase": "backward"}, "compute"),
        ({"phase": "optimizer", "trips": 1}, "compute"),
        (
            {"phase": "optimizer", "operator_seconds": 0.03, "launches": 900, "trips": 300},
            "optimizer",
        ),
        ({"seconds": 0.004}, "compute"),
    ],
)
def test_what_a_line_suffers_from(facts: dict[str, Any], cause: str) -> None:
    assert causes(record(suspects=(suspect(**facts),))) == [cause]


def test_backward_time_belongs_to_the_line_that_caused_it() -> None:
    busy = suspect(phase="forward", seconds=0.01, backward_seconds=0.04, launches=900, trips=300)
    busy = replace(busy, operator_seconds=0.009)
    found = diagnose(record(suspects=(busy,))).findings
    assert found[0].cause == "launch"
    assert found[0].gain_ms == pytest.approx(50, rel=0.05)


def test_a_trial_gives_the_gain_and_what_was_seen_gives_the_line() -> None:
    seen = suspect(key="input", phase="input", site=replace(LINE, line=40))
    tried = change("input", site=replace(LINE, line=3))
    found = record(suspects=(seen,), changes=(tried,), windows=blocks(removed=0.06))
    (finding,) = diagnose(found).findings
    assert (finding.cause, finding.line, finding.verified) == ("input", 40, True)
    assert finding.gain_ms == pytest.approx(40, rel=0.02)
    assert finding.gain_ci[0] <= finding.gain_ms <= finding.gain_ci[1]


def test_a_trial_that_gives_nothing_back_excludes_what_was_seen() -> None:
    seen = suspect(key="input", phase="input")
    found = record(suspects=(seen,), changes=(change("input"),), windows=blocks(removed=0.0995))
    diagnosis = diagnose(found)
    assert [each.cause for each in diagnosis.findings] == ["compute"]
    assert [each.cause for each in diagnosis.excluded] == ["input"]


def test_a_replayed_function_proves_its_own_line_only() -> None:
    slow = suspect(key="function f")
    tried = change("host", variant="replayed function f")
    windows = tuple(
        replace(each, variant="replayed function f") if each.variant == "removed" else each
        for each in blocks(removed=0.07)
    )
    (finding,) = diagnose(record(suspects=(slow,), changes=(tried,), windows=windows)).findings
    assert (finding.cause, finding.verified) == ("host", True)
    # A function that simply computes is no cause, however much leaving it out gives back.
    honest = replace(slow, operator_seconds=0.03)
    assert causes(record(suspects=(honest,), changes=(tried,), windows=windows)) == ["compute"]


def test_a_larger_batch_must_give_back_more_than_other_changes() -> None:
    tried = change("batch", samples=4.0)
    assert causes(record(changes=(tried,), windows=blocks(removed=0.30))) == ["compute"]
    assert causes(record(changes=(tried,), windows=blocks(removed=0.16))) == ["batch"]


def test_a_larger_batch_is_not_credited_with_what_another_cause_costs() -> None:
    """Of 60 ms that it gives back, three quarters of the other cause's 50 ms are not its own."""
    found = record(
        suspects=(suspect(seconds=0.05),),
        changes=(change("batch", samples=4.0),),
        windows=blocks(removed=0.16),
    )
    diagnosis = diagnose(found)
    assert [each.cause for each in diagnosis.findings] == ["host", "batch"]
    assert diagnosis.findings[1].gain_ms == pytest.approx(60 - 0.75 * 50, rel=0.03)
    assert diagnosis.step_ms is not None
    assert diagnosis.step_ms.median == pytest.approx(STEP * 1e3)


def test_a_change_of_replayed_steps_is_held_against_those() -> None:
    """What the loader took is gone on both sides, and cannot come back twice."""
    tried = change("batch", samples=4.0, against="replayed")
    found = record(changes=(tried,), windows=blocks(replayed=0.02, removed=0.04))
    diagnosis = diagnose(found)
    assert [each.cause for each in diagnosis.findings] == ["compute"]
    assert diagnosis.excluded[0].gain_ci[1] == pytest.approx(10, rel=0.05)


def test_what_could_still_give_back_much_is_not_excluded() -> None:
    scatter = (0.04, -0.04, 0.01, -0.01, 0.02, -0.02) * 2
    wide = tuple(Window(block, "removed", 1, STEP + add) for block, add in enumerate(scatter))
    diagnosis = diagnose(record(changes=(change("precision"),), windows=blocks() + wide))
    assert [each.cause for each in diagnosis.findings] == ["compute"]
    assert not diagnosis.excluded
    (open_,) = diagnosis.cannot_tell
    assert open_.cause == "precision"


def test_one_line_speaks_for_all_that_are_not_the_cause() -> None:
    lines = [
        suspect(key=str(line), site=replace(LINE, line=line, function=str(line)), seconds=seconds)
        for line, seconds in enumerate((0.0002, 0.001, 0.0005))
    ]
    diagnosis = diagnose(record(suspects=tuple(lines)))
    (excluded,) = diagnosis.excluded
    assert excluded.cause == "host"
    assert "1.00 ms per step" in excluded.evidence


def test_of_a_healthy_script_the_busiest_line_is_named() -> None:
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
    (healthy,) = diagnose(record(suspects=(other, busy))).findings
    assert (healthy.cause, healthy.line) == ("compute", 7)
    assert "train.py:7, 60.0 ms per step" in healthy.evidence


def test_what_is_within_the_noise_of_unchanged_steps_is_no_finding() -> None:
    windows = blocks(removed=0.09)
    restless = tuple(
        replace(each, seconds=each.seconds * (1.5 if each.block % 2 else 0.67))
        if each.variant == AGAIN
        else each
        for each in windows
    )
    tried = (change("optimizer"),)
    assert causes(record(changes=tried, windows=windows)) == ["optimizer"]
    assert causes(record(changes=tried, windows=restless)) == ["compute"]


def test_a_change_that_failed_is_undecided_with_its_reason() -> None:
    failed = change("batch", failed="MemoryError: full")
    (undecided,) = diagnose(record(changes=(failed,))).cannot_tell
    assert undecided.cause == "batch"
    assert "MemoryError: full" in undecided.reason


def test_lines_of_one_function_with_one_cause_are_one_finding() -> None:
    first = suspect(key="a", seconds=0.03, repeats=True)
    second = suspect(key="b", seconds=0.01, repeats=True, site=replace(LINE, line=14))
    (finding,) = diagnose(record(suspects=(first, second))).findings
    assert (finding.cause, finding.line) == ("recompute", 12)
    assert finding.gain_ms == pytest.approx(40)


def test_double_precision_is_held_against_what_this_device_does() -> None:
    (finding,) = diagnose(record(double_share=1.0, double_site=LINE)).findings
    assert finding.cause == "precision"
    assert finding.gain_ms == pytest.approx(50)
    assert causes(record(double_share=0.01, double_site=LINE)) == ["compute"]


def growth(**changes: Any) -> Growth:
    return replace(Growth(LINE, "history", True, 2e-4, 1e-4, 3e-4, 0.0), **changes)


def test_growth_needs_work_that_takes_longer_because_of_it_or_much_memory() -> None:
    slower = suspect(key="sum", seconds=0.002)
    (finding,) = diagnose(record(suspects=(slower,), growth=growth(suspect="sum"))).findings
    assert finding.cause == "growth"
    assert finding.gain_ms == pytest.approx(20)
    assert "history grows" in finding.evidence
    assert causes(record(growth=growth())) == ["compute"]
    still = growth(seconds_per_step=0.0, seconds_low=0.0, seconds_high=0.0)
    assert causes(record(growth=still)) == ["compute"]
    assert causes(record(growth=replace(still, bytes_per_step=5e6))) == ["growth"]


def ranks(*alone: float, plain: float) -> tuple[RankTimes, ...]:
    return tuple(
        RankTimes(
            rank,
            plain,
            0.0,
            (replace(suspect(key="extra", seconds=own / 2), site=replace(LINE, line=rank)),),
            tuple(
                Window(block, variant, 1, seconds)
                for block in range(12)
                for variant, seconds in {PLAIN: plain, AGAIN: plain, "removed": own}.items()
            ),
        )
        for rank, own in enumerate(alone)
    )


def test_the_slowest_rank_is_named_and_its_own_wait_is_the_wire() -> None:
    tried = (change("communication"),)
    late = diagnose(record(changes=tried, ranks=ranks(0.05, 0.1, plain=STEP)))
    assert [each.cause for each in late.findings] == ["straggler"]
    assert late.findings[0].line == 1
    assert "rank 1 takes" in late.findings[0].evidence
    wire = diagnose(record(changes=tried, ranks=ranks(0.06, 0.06, plain=STEP)))
    assert [each.cause for each in wire.findings] == ["communication"]
    assert wire.findings[0].gain_ms == pytest.approx(40)


def test_nothing_measured_is_said_and_not_guessed() -> None:
    empty = record(step_seconds=(), sampled_steps=0, steps=0, missing="the script ended")
    diagnosis = diagnose(empty)
    assert diagnosis.findings == ()
    assert diagnosis.step_ms is None
    assert diagnosis.sentence == "No diagnosis: the script ended."
    assert summarize(diagnosis).startswith("diagnose: No diagnosis")


def test_every_cause_has_advice_and_records_survive_json() -> None:
    full = record(suspects=(suspect(),), growth=growth(), ranks=ranks(0.1, 0.1, plain=STEP))
    assert all(advise(cause, LINE, None, full) for cause in CAUSES)
    assert json.loads(json.dumps(to_dict(full)))["script"] == "train.py"


@pytest.mark.parametrize(
    ("needed_bytes", "expected"), [(10**8, "optimizer"), (25 * 10**7, "compute")]
)
def test_an_update_of_ones_own_is_held_against_one_pass_over_its_tensors(
    needed_bytes: int, expected: str
) -> None:
    own = suspect(
        phase="optimizer",
        seconds=0.03,
        operator_seconds=0.03,
        launches=168,
        trips=24,
        moved_bytes=3 * 10**8,
    )
    found = diagnose(record(suspects=(own,), update_bytes=needed_bytes))
    assert found.findings[0].cause == expected
    if expected == "optimizer":
        assert found.findings[0].gain_ms == pytest.approx(20.0)


def test_replaying_batches_gives_back_no_more_than_was_seen_in_the_loader() -> None:
    """Kept batches are warm in the caches; a fast loader must not be blamed for that."""
    seen = suspect(phase="input", seconds=0.002)
    replayed = change("input", variant="replayed batches")
    windows = blocks(replayed_batches=0.9 * STEP)
    assert causes(record(suspects=(seen,), changes=(replayed,), windows=windows)) == ["compute"]
    slow = replace(seen, seconds=0.01)
    assert causes(record(suspects=(slow,), changes=(replayed,), windows=windows)) == ["input"]


@pytest.mark.parametrize(("new_bytes", "expected"), [(0, "host"), (30 * 10**6, "compute")])
def test_fresh_memory_is_no_work_of_pythons(new_bytes: int, expected: str) -> None:
    """Operators that took a third of the time while they were mapped may take it all else."""
    seen = suspect(seconds=0.03, operator_seconds=0.01, launches=4, new_bytes=new_bytes)
    ceilings = Ceilings(1e11, 5e10, 5e10, 1e10, fresh_bytes_per_second=1.5e9)
    assert causes(record(suspects=(seen,), ceilings=ceilings)) == [expected]
