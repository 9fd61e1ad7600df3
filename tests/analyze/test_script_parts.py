"""Are slow steps, prefixes, sums, edits and several runs told as they were measured?"""

from __future__ import annotations

from dataclasses import replace

import pytest

from diagnose.analyze.script.again import join_runs
from diagnose.analyze.script.edits import find_edit
from diagnose.analyze.script.rules import diagnose
from diagnose.analyze.script.slow import explain, write_slow
from diagnose.analyze.script.words import advise
from diagnose.records.script import (
    ALL,
    GARBAGE,
    Autocast,
    Cause,
    Ceilings,
    Loader,
    Occasion,
    Site,
    SlowStep,
)
from tests.support.records.script import LINE, STEP, blocks, change, record, suspect


@pytest.mark.parametrize(
    ("over", "faults", "switches", "reason"),
    [
        ({"garbage": 0.18, "host": 0.01}, 0, 0, "Python's garbage collector"),
        ({"input": 0.15}, 5000, 9, "waiting for the loader"),
        ({"forward": 0.19}, 0, 12, "other processes on these cores"),
        ({"forward": 0.19}, 9000, 0, "new memory from the system (page faults)"),
        ({"forward": 0.19}, 0, 0, "the forward itself"),
        ({"forward": 0.05, "host": 0.05}, 0, 0, ""),
    ],
)
def test_a_slow_step_is_explained_by_what_most_of_it_went_to(
    over: dict[str, float], faults: int, switches: int, reason: str
) -> None:
    slow = SlowStep(17, 0.3, 0.1, over, faults, switches)
    assert explain(slow) == reason
    told = write_slow(record(slow_steps=(slow, replace(slow, seconds=0.2))))
    assert told.startswith("2 of 100 sampled steps took more than 1.5 times the usual 100 ms, up")
    assert (reason or "unexplained") in told
    assert write_slow(record()) == ""


def test_a_prefix_that_grows_by_one_is_computed_again() -> None:
    """1 ms for every position, and 2 ms whatever the length: with a cache 3 ms are left of 62."""
    lengths = [*range(20, 100)] * 3
    calls = tuple((length, 0.002 + 0.001 * length) for length in lengths)
    mean = sum(seconds for _, seconds in calls) / len(calls)
    found = record(boundary="model call", prefixes=calls, prefix_site=LINE, step_seconds=(mean,))
    (finding,) = diagnose(found).findings
    assert (finding.cause, finding.line, finding.verified) == ("recompute", LINE.line, False)
    low, high = finding.gain_ci
    assert low <= (mean - 0.003) * 1e3 <= high + 1e-6
    assert "from 20 to 99" in finding.evidence
    assert "use_cache" in finding.advice
    # Where a step makes the whole text, it gives back as much for every token.
    text = replace(found, boundary="generate call", step_seconds=(80 * mean,))
    assert diagnose(text).findings[0].gain_ms == pytest.approx(80 * finding.gain_ms)
    # With a cache every call is given one position; a batch of sentences has any length.
    for others in ([1] * 240, [17, 30, 12, 44] * 60):
        other = replace(found, prefixes=tuple((each, 0.06) for each in others))
        assert [each.cause for each in diagnose(other).findings] == ["compute"]


def test_overlapping_gains_are_told_alone_and_after_those_above() -> None:
    """Both save 60 and 50 ms alone, and 80 together."""
    changes = (
        change("host", variant="one"),
        change("sync", variant="two", site=replace(LINE, line=40)),
        change("compute", variant=ALL),
    )
    windows = blocks(one=0.04, two=0.05, all_at_once=0.02)
    found = diagnose(record(changes=changes, windows=windows))
    one, two = found.findings
    assert [one.gain_ms, two.gain_ms] == pytest.approx([60, 50], rel=0.02)
    assert one.after_ms == pytest.approx(one.gain_ms)
    assert two.after_ms == pytest.approx(20, abs=1.5)
    assert found.expected_ms is not None
    assert found.expected_ms.low - 1e-6 <= 20 <= found.expected_ms.high + 1e-6
    assert found.expected_ms.mean == pytest.approx(20, abs=1.5)
    alone = diagnose(record(changes=changes[:2], windows=windows)).expected_ms
    assert alone is not None
    assert alone.mean == pytest.approx(0, abs=1)  # never below


@pytest.mark.parametrize(
    ("cause", "code", "advice", "edited"),
    [
        (
            "optimizer",
            "o = Adam(m.parameters())",
            "fused=True",
            "o = Adam(m.parameters(), fused=True)",
        ),
        ("optimizer", "o = SGD(p, foreach=False)", "fused=True", "o = SGD(p, fused=True)"),
        ("optimizer", "optimizer = make(", "fused=True", None),
        ("sync", "total += loss.item()", "", "total += loss.detach()"),
        ("sync", "if loss.item() > 3:", "", None),
        ("host", "work()", "do it once", None),
    ],
)
def test_a_mechanical_fix_is_an_edit(
    cause: Cause, code: str, advice: str, edited: str | None
) -> None:
    found = find_edit(cause, replace(LINE, code=code), advice, record())
    assert found == ((f"train.py:{LINE.line}", f"- {code}", f"+ {edited}") if edited else ())


@pytest.mark.parametrize(
    ("workers", "making", "cores", "expected"),
    [
        (0, 0.0, 8, "else num_workers=1 keeps up"),
        (1, 0.18, 8, "else num_workers=3 keeps up"),
        (1, 0.18, 2, "2 cores cannot run enough workers"),
        (1, 0.0, 8, "num_workers=2"),
    ],
)
def test_the_advice_says_how_many_workers_are_enough(
    workers: int, making: float, cores: int, expected: str
) -> None:
    site = Site("train.py", 3, "main", "loader = DataLoader(data, batch_size=8)")
    loader = Loader(site, workers, 8, making, cores)
    waits = suspect(phase="input", seconds=0.04)
    found = record(loaders=(loader,), suspects=(waits,))
    advice = advise("input", LINE, waits, found)
    assert expected in advice
    if "num_workers=" in advice:
        assert "num_workers=" in find_edit("input", LINE, advice, found)[2]


def test_collecting_garbage_is_told_with_its_own_fix() -> None:
    (finding,) = diagnose(record(suspects=(suspect(key=GARBAGE),))).findings
    assert finding.cause == "host"
    assert "gc.freeze()" in finding.advice


def test_several_runs_are_judged_as_one() -> None:
    """Four blocks of one run are too few for an interval, and eight are enough."""
    occasion = Occasion("evaluation", "validate", "left out", 10, (0.2,), (0.1,))
    few = tuple(each for each in blocks(removed=0.06) if each.block < 4)
    run = record(changes=(change("host"),), windows=few, occasions=(occasion,), run_seconds=5.0)
    assert [each.cause for each in diagnose(run).findings] == ["compute"]
    both = join_runs([run, replace(run, steps=50), record(missing="it ended", sampled_steps=0)])
    assert (both.steps, both.run_seconds, len(both.step_seconds)) == (250, 10.0, 40)
    assert len({each.block for each in both.windows}) == 8
    assert (both.occasions[0].steps, both.occasions[0].ran) == (20, (0.2, 0.2))
    (finding,) = diagnose(both).findings
    assert (finding.cause, finding.verified) == ("host", True)
    assert finding.gain_ms == pytest.approx(0.4 * STEP * 1e3, rel=0.05)


@pytest.mark.parametrize(
    ("autocast", "low_rate", "gain_ms"),
    [
        # Of 100 ms of operators: conversions go away, and the rest takes a quarter.
        (Autocast(LINE, 0.1, 0.4), 2.5e10, 10 + 30),
        # Products as fast as in float32: conversions alone cost it.
        (Autocast(LINE, 0.2, 0.4), 1e11, 20),
        # Products twice as fast give back more than the conversions take.
        (Autocast(LINE, 0.1, 0.4), 2e11, None),
        (Autocast(LINE, 0.4, 0.4), 0.0, None),
        (None, 2.5e10, None),
    ],
)
def test_autocast_is_a_cause_where_it_costs_more_than_it_saves(
    autocast: Autocast | None, low_rate: float, gain_ms: float | None
) -> None:
    found = diagnose(record(autocast=autocast, ceilings=Ceilings(1e11, 5e10, low_rate, 1e10)))
    (finding,) = found.findings
    if gain_ms is None:
        assert finding.cause == "compute"
        return
    assert (finding.cause, finding.line, finding.verified) == ("precision", LINE.line, False)
    assert finding.gain_ms == pytest.approx(gain_ms)
    assert finding.gain_ci[0] < gain_ms < finding.gain_ci[1]
    assert "under autocast conversions take" in finding.evidence
