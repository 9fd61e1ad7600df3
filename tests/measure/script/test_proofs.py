"""Does what was tried prove, refute or leave open what was seen?"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from diagnose.analyze.script.rules import diagnose
from diagnose.records.script import Change, Occasion, Suspect, Window
from tests.support.records.script import LINE, STEP, blocks, change, record, suspect


def occasion(phase: Any, cost: float, every: int, **changes: Any) -> Occasion:
    with_it = tuple(STEP + cost + 1e-4 * (number % 3 - 1) for number in range(10))
    plain = Occasion(phase, "evaluate", "it was left out", 20 * every, with_it, (STEP,) * 10)
    return replace(plain, **changes)


@pytest.mark.parametrize(
    ("phase", "cause"), [("evaluation", "evaluation"), ("checkpoint", "host"), ("logging", "host")]
)
def test_what_comes_now_and_then_is_proven_by_the_steps_without_it(phase: Any, cause: str) -> None:
    seen = suspect(phase=phase, seconds=0.02)
    found = diagnose(record(suspects=(seen,), occasions=(occasion(phase, 0.2, every=8),)))
    first = found.findings[0]
    assert (first.cause, first.verified, first.line) == (cause, True, LINE.line)
    assert first.gain_ms == pytest.approx(0.2 / 8 * 1e3, rel=0.01)
    assert re.search(r"every 8 steps; every 4[01] steps it costs at most 5\.0 %", first.advice)


def test_too_few_occasions_leave_an_estimate() -> None:
    seen = suspect(phase="evaluation", seconds=0.02)
    rare = occasion("evaluation", 0.2, every=8, left_out=(STEP,) * 5)
    found = diagnose(record(suspects=(seen,), occasions=(rare,)))
    first = found.findings[0]
    assert (first.cause, first.verified) == ("evaluation", False)
    assert first.gain_ms == pytest.approx(20.0)


def test_leaving_it_out_can_refute_what_was_seen() -> None:
    seen = suspect(phase="evaluation", seconds=0.02)
    cheap = occasion("evaluation", 0.001, every=8)
    found = diagnose(record(suspects=(seen,), occasions=(cheap,)))
    assert [each.cause for each in found.findings] == ["compute"]
    assert "evaluation" in [each.cause for each in found.excluded]


def doubled(seen: Suspect, **changes: Any) -> Change:
    return change("host", variant=f"doubled {seen.key}", doubles=1.0, **changes)


@pytest.mark.parametrize("with_backward", [False, True])
def test_what_doubling_adds_is_what_removing_gives_back(with_backward: bool) -> None:
    """Half of this work can be saved; its backward pass is doubled with it or not."""
    seen = suspect(
        phase="forward",
        seconds=0.03,
        backward_seconds=0.03,
        launches=64,
        trips=32,
        operator_seconds=0.03,
        moved_bytes=int(0.03 * 1e10),
    )
    adds = 0.066 if with_backward else 0.033  # a tenth more than was sampled
    found = diagnose(
        record(
            suspects=(seen,),
            changes=(doubled(seen),),
            windows=blocks(doubled_line=STEP + adds),
        )
    )
    first = found.findings[0]
    assert (first.cause, first.verified) == ("launch", True)
    assert first.gain_ms == pytest.approx(33.0, rel=0.02)


def test_a_part_that_was_doubled_speaks_for_the_whole() -> None:
    """A third of the function ran twice, and cost as much as was seen there."""
    seen = suspect(seconds=0.03)
    found = diagnose(
        record(
            suspects=(seen,),
            changes=(replace(doubled(seen), doubles=1 / 3),),
            windows=blocks(doubled_line=STEP + 0.01),
        )
    )
    first = found.findings[0]
    assert (first.cause, first.verified) == ("host", True)
    assert first.gain_ms == pytest.approx(30.0, rel=0.02)


def test_doubling_that_breaks_the_script_leaves_the_estimate() -> None:
    seen = suspect(launches=64, trips=32)
    found = diagnose(record(suspects=(seen,), changes=(doubled(seen, failed="ValueError: two"),)))
    assert (found.findings[0].cause, found.findings[0].verified) == ("launch", False)
    assert not found.cannot_tell


def test_too_noisy_a_doubling_leaves_the_estimate() -> None:
    """It added less than was seen with the backward pass, but that pass may not be doubled."""
    seen = suspect(
        phase="forward",
        seconds=0.02,
        backward_seconds=0.04,
        operator_seconds=0.02,
        launches=64,
        trips=32,
    )
    added = (-0.02, 0.04, 0.01, 0.03, -0.01, 0.02) * 2
    noisy = tuple(Window(block, "doubled line", 1, STEP + more) for block, more in enumerate(added))
    found = diagnose(record(suspects=(seen,), changes=(doubled(seen),), windows=blocks() + noisy))
    first = found.findings[0]
    assert (first.cause, first.verified) == ("launch", False)
    assert first.gain_ms == pytest.approx(60.0, rel=0.05)


def test_kept_values_prove_a_wait_that_no_line_was_seen_for() -> None:
    kept = change("sync", variant="kept values")
    found = diagnose(record(changes=(kept,), windows=blocks(kept_values=0.07)))
    assert (found.findings[0].cause, found.findings[0].verified) == ("sync", True)
    assert found.findings[0].gain_ms == pytest.approx(30.0, rel=0.02)


def test_kept_values_do_not_belittle_a_loop_around_the_reads() -> None:
    seen = suspect(syncs=64, launches=128, trips=64, seconds=0.04)
    kept = change("sync", variant="kept values")
    found = diagnose(record(suspects=(seen,), changes=(kept,), windows=blocks(kept_values=0.09)))
    assert [each.cause for each in found.findings] == ["sync"]
    assert found.findings[0].gain_ms == pytest.approx(40.0)


def test_within_wide_bounds_of_a_trial_what_was_seen_is_told() -> None:
    seen = suspect(phase="input", seconds=0.03)
    scatter = (0.01, 0.045, 0.02, 0.035, 0.015, 0.04) * 2
    wide = tuple(Window(block, "removed", 1, STEP - less) for block, less in enumerate(scatter))
    (found,) = diagnose(
        record(suspects=(seen,), changes=(change("input"),), windows=blocks() + wide)
    ).findings
    low, high = found.gain_ci
    assert found.verified
    assert low < 25 < 31 < high
    assert found.gain_ms == pytest.approx(30.0)
