"""Are the first line's numbers, the options and the gates what the record allows, both ways?"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from diagnose.analyze.script.gates import judge_gates
from diagnose.analyze.script.rules import diagnose
from diagnose.records.diagnosis import Diagnosis, Exclusion, Gate, Speed, Undecided
from diagnose.records.header import Fact, Reading
from diagnose.records.script import (
    Ceilings,
    Growth,
    Loader,
    RankTimes,
    ScriptRecord,
    Site,
    TriedOption,
)
from tests.support.records.script import (
    LINE,
    STEP,
    blocks,
    change,
    golden_record,
    record,
    suspect,
)


def speed(**facts: Any) -> Speed:
    found = diagnose(record(**facts)).speed
    assert found is not None
    return found


def test_rates_come_from_the_mean_step() -> None:
    rare = (*(STEP,) * 18, 10 * STEP, 10 * STEP)
    found = speed(step_seconds=rare, samples=Reading(38.0), tokens=Reading(380.0))
    assert found.samples_per_second.value == pytest.approx(38 / (1.9 * STEP))
    assert found.tokens_per_second.value == pytest.approx(380 / (1.9 * STEP))
    unknown = speed(samples=Reading(None, "no tensor"))
    assert unknown.samples_per_second == Reading(None, "no tensor")


CEILINGS = Ceilings(1e11, 5e10, 4e11, 1e10, tensor_float_flops_per_second=2e11)


@pytest.mark.parametrize(
    ("flops", "share", "precision"),
    [
        ({"float32": 1e9}, 0.1, "float32"),
        ({"bfloat16": 1e9}, 0.025, "bfloat16"),
        ({"float16": 1e9}, 0.025, "float16"),
        ({"float64": 1e9}, 0.2, "float64"),
        ({"tf32": 1e9}, 0.05, "tf32"),
        ({"bfloat16": 8e9, "float32": 2e9}, 0.4, "bfloat16"),
        ({"float32": 2e10}, 2.0, "float32"),
    ],
)
def test_utilization_is_held_against_the_precision_in_use(
    flops: dict[str, float], share: float, precision: str
) -> None:
    found = speed(flops_by_precision=flops, ceilings=CEILINGS)
    assert found.utilization.value == pytest.approx(share)
    assert found.precision == precision


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"flops_by_precision": {}}, "no FLOPs"),
        ({"ceilings": None}, "not measured"),
        ({"flops_by_precision": {"float32": 1e9, "float8_e4m3fn": 1.0}}, "float8_e4m3fn"),
        ({"ceilings": replace(CEILINGS, flops_per_second=0.0)}, "float32"),
    ],
)
def test_an_unknown_utilization_has_a_reason(facts: dict[str, Any], reason: str) -> None:
    found = speed(**facts).utilization
    assert found.value is None
    assert reason in found.reason


def test_the_first_line_has_the_numbers_and_more_than_everything_is_told_as_wrong() -> None:
    sentence = diagnose(golden_record()).sentence
    assert "takes 100.0 ms on average (640 samples/s, 10.0 % of the float32 speed" in sentence
    assert "wrong" not in sentence
    tokens = replace(golden_record(), tokens=Reading(8192.0), device_busy=Reading(0.43))
    assert "(81,920 tokens/s, device busy 43 %, " in diagnose(tokens).sentence
    fast = diagnose(replace(golden_record(), flops_by_precision={"float32": 1.3e10}))
    assert "130 % of the float32 speed measured here, so that this ceiling is wrong" in (
        fast.sentence
    )
    (rank,) = [RankTimes(0, STEP, 0.0, (), ())]
    several = replace(golden_record(), ranks=(rank, replace(rank, rank=1)))
    assert "(640 samples/s per rank, " in diagnose(several).sentence
    assert "per rank" not in sentence


def test_worth_is_the_gain_of_a_thousand_steps_and_of_a_day() -> None:
    diagnosis = diagnose(golden_record())
    first, together = diagnosis.worth
    gains = [each.gain_ms for each in diagnosis.findings]
    assert (first.fixes, together.fixes) == (1, 2)
    assert first.per_1000_steps == pytest.approx(gains[0])
    assert first.per_day == pytest.approx(gains[0] / 100 * 86400)
    low, high = first.per_day_ci
    assert low < first.per_day <= high
    assert together.per_day == pytest.approx(sum(gains) / 100 * 86400)
    # At least the best alone, at most the sum.
    assert together.per_day_ci[0] == pytest.approx(low)
    assert together.per_day_ci[1] == pytest.approx(
        sum(each.gain_ci[1] for each in diagnosis.findings) / 100 * 86400
    )
    assert " s per 1,000 steps, " in diagnosis.sentence
    assert " h of every 24 h; all 2 fixes together at most " in diagnosis.sentence
    assert not diagnose(record()).worth


def test_all_fixes_together_give_back_no_more_than_the_step() -> None:
    lines = [
        suspect(key=str(line), site=replace(LINE, line=line, function=str(line)), seconds=0.06)
        for line in (3, 5)
    ]
    together = diagnose(record(suspects=tuple(lines))).worth[1]
    assert together.per_1000_steps == together.per_1000_steps_ci[1] == pytest.approx(STEP * 1e3)


def test_growth_that_costs_nothing_yet_is_told_as_memory() -> None:
    growth = Growth(LINE, "history", True, 0.0, 0.0, 0.0, 5e6)
    sentence = diagnose(record(growth=growth)).sentence
    assert "growth at train.py:12 costs nothing yet: what the script keeps in history" in sentence


# --- what a finding may promise ---


def test_no_finding_promises_more_than_the_step_and_its_interval_keeps_a_width() -> None:
    """Sampled seconds can exceed a mean step: the share must not."""
    (finding,) = diagnose(record(suspects=(suspect(seconds=0.117),))).findings
    assert finding.gain_ms == pytest.approx(100)
    assert finding.share == pytest.approx(1.0)
    low, high = finding.gain_ci
    assert low < 98 < high <= 100.0001
    assert "promised 117 ms" in finding.evidence
    (usual,) = diagnose(record(suspects=(suspect(seconds=0.05),))).findings
    assert "promised" not in usual.evidence


def test_a_trial_that_gives_back_more_than_was_seen_is_not_certain_of_the_cap() -> None:
    seen = suspect(phase="input", seconds=0.01)
    replayed = change("input", variant="replayed batches")
    found = record(
        suspects=(seen,), changes=(replayed,), windows=blocks(replayed_batches=0.5 * STEP)
    )
    (finding,) = diagnose(found).findings
    low, high = finding.gain_ci
    assert low < 10 < 12 < finding.gain_ms <= high < 15
    assert "ms is counted, by what was seen there" in finding.evidence


def test_a_finding_has_a_line_or_is_the_whole_step() -> None:
    for site in (None, Site("train.py", 0, "?"), Site("", 7, "f")):
        found = record(changes=(change("precision", site=site),), windows=blocks(removed=0.06))
        diagnosis = diagnose(found)
        (finding,) = diagnosis.findings
        assert (finding.file, finding.line, finding.function) == ("", 0, "")
        assert "is precision at whole step (tried)" in diagnosis.sentence


# --- options ---


def options(**facts: Any) -> list[str]:
    found = diagnose(record(**{"ceilings": CEILINGS, **facts})).options
    return [each.command.removeprefix("diagnose prove train.py --with ") for each in found]


def test_lower_precision_is_an_option_and_no_cause() -> None:
    diagnosis = diagnose(record(ceilings=CEILINGS))
    assert [each.cause for each in diagnosis.findings] == ["compute"]
    assert options() == ["autocast", "tf32", "compile"]
    assert "a large bfloat16 product is 4.0 times as fast here" in diagnosis.options[0].why
    assert "numbers" in diagnosis.options[0].changes
    assert "autocast" not in diagnosis.sentence


@pytest.mark.parametrize(
    "facts",
    [
        {"ceilings": Ceilings(1e11, 5e10, 1.1e11, 1e10)},
        {"ceilings": None},
        {"ceilings": Ceilings(0.0, 0.0, 1e11, 1e10)},
        {"flops_by_precision": {}},
        {"flops_by_precision": {"bfloat16": 9e8, "float32": 1e8}},
        {"flops_by_precision": {"tf32": 1e9}},
    ],
)
def test_lower_precision_is_no_option_where_nothing_speaks_for_it(facts: dict[str, Any]) -> None:
    assert not {"autocast", "tf32"} & {*options(**facts)}


LOADER = Loader(LINE, workers=0, batch_size=8)
WAITING = {"input": 0.02, "forward": 0.05, "backward": 0.02, "optimizer": 0.01}
FUSED = change(
    "optimizer", variant="update fused 0", against="update 0", what="fused=True in AdamW"
)
FOREACH = replace(FUSED, what="foreach=True in Adam")
UPDATES = blocks(update_0=0.01, update_fused_0=0.004)
SLOWER = blocks(update_0=0.01, update_fused_0=0.02)


@pytest.mark.parametrize(
    ("facts", "option", "is_named"),
    [
        ({}, "compile", True),
        ({"mapped": False}, "compile", False),  # it is compiled
        ({"flops_by_precision": {"float32": 8e9}}, "compile", False),  # arithmetic takes the time
        ({"phases": {"host": 0.08, "forward": 0.02}}, "compile", False),
        ({"ceilings": None}, "compile", False),
        ({"loaders": (LOADER,)}, "batch", True),
        ({}, "batch", False),
        ({"loaders": (replace(LOADER, batch_size=None),)}, "batch", False),
        ({"loaders": (LOADER,), "flops_by_precision": {"float32": 6e9}}, "batch", False),
        ({"loaders": (LOADER,), "phases": WAITING}, "workers", True),
        ({"phases": WAITING}, "workers", False),
        ({"loaders": (LOADER,)}, "workers", False),  # nothing waits for it
        ({"loaders": (replace(LOADER, workers=2),), "phases": WAITING}, "workers", False),
        ({"loaders": (replace(LOADER, cores=1),), "phases": WAITING}, "workers", False),
        ({"changes": (FUSED,), "windows": UPDATES}, "fused", True),
        ({"changes": (FOREACH,), "windows": UPDATES}, "fused", False),
        ({"changes": (FUSED,), "windows": SLOWER}, "fused", False),
        ({"changes": (FUSED,), "windows": UPDATES, "phases": {"forward": 0.09}}, "fused", False),
        ({}, "fused", False),
    ],
)
def test_an_option_is_named_where_something_speaks_for_it(
    facts: dict[str, Any], option: str, is_named: bool
) -> None:
    assert (option in options(**facts)) is is_named


def test_an_option_that_was_tried_says_so() -> None:
    tried = TriedOption("tf32", "SAME: it runs at 1.00x.", "SAME", 1.0, (0.98, 1.02), "EQUAL")
    found = diagnose(record(ceilings=CEILINGS, tried_options=(tried,))).options
    assert [each.tried for each in found] == [None, tried, None]


# --- where it ran ---


@pytest.mark.parametrize(
    ("commit", "name", "dirty"),
    [
        (Fact("0123abc"), "0123abc", False),
        (Fact("0123abc-dirty"), "0123abc", True),
        (Fact(None, "no git"), None, None),
    ],
)
def test_the_environment_says_commit_and_arguments(
    commit: Fact, name: str | None, dirty: bool | None
) -> None:
    found = diagnose(record(commit=commit, arguments=("--lr", "3"))).environment
    assert found is not None
    assert (found.commit.value, found.dirty, found.arguments) == (name, dirty, ("--lr", "3"))
    assert (found.torch.value, found.python.value) == ("2.13.0", "3.11.7")


# --- gates ---


def judged(found: ScriptRecord | Diagnosis, cause: Any, share: float) -> str:
    diagnosis = diagnose(found) if isinstance(found, ScriptRecord) else found
    (judgment,) = judge_gates(diagnosis, [Gate(cause, share)])
    return judgment.verdict


@pytest.mark.parametrize(
    ("cause", "share", "verdict"),
    [
        # input takes 37.7 to 38.3 %, launch 18.5 to 21.3 % (estimated), host at most 1.3 %.
        ("input", 0.10, "FAILED"),
        ("input", 0.37, "FAILED"),
        ("input", 0.38, "INCONCLUSIVE"),
        ("input", 0.39, "PASSED"),
        ("launch", 0.20, "INCONCLUSIVE"),
        ("launch", 0.50, "PASSED"),
        ("host", 0.05, "PASSED"),
        ("host", 0.01, "INCONCLUSIVE"),
        ("sync", 0.0, "PASSED"),
        (None, 0.10, "FAILED"),
        # The trial of a larger batch failed.
        ("batch", 0.10, "INCONCLUSIVE"),
        (None, 0.50, "INCONCLUSIVE"),
    ],
)
def test_a_gate_fails_passes_or_cannot_tell(cause: Any, share: float, verdict: str) -> None:
    assert judged(golden_record(), cause, share) == verdict


def test_a_run_that_did_not_end_passes_no_gate() -> None:
    assert judged(record(), "input", 0.5) == "PASSED"
    assert judged(record(missing="it was interrupted"), "input", 0.5) == "INCONCLUSIVE"
    nothing = record(step_seconds=(), sampled_steps=0, missing="no step")
    assert judged(nothing, None, 0.5) == "INCONCLUSIVE"
    sure = replace(golden_record(), missing="it was interrupted")
    assert judged(sure, "input", 0.1) == "FAILED"


def test_what_decides_is_the_interval_and_not_the_point() -> None:
    healthy = diagnose(record())
    wide = replace(healthy, excluded=(Exclusion("host", (-1.0, 4.0), "seen"),))
    assert judged(wide, "host", 0.03) == "INCONCLUSIVE"
    assert judged(wide, "host", 0.041) == "PASSED"
    open_one = replace(healthy, cannot_tell=(Undecided("sync", "noise"),))
    assert judged(open_one, "sync", 0.5) == judged(open_one, None, 0.5) == "INCONCLUSIVE"
    assert judged(open_one, "host", 0.5) == "PASSED"


def test_a_judgment_names_gate_line_and_interval() -> None:
    (failed,) = judge_gates(diagnose(golden_record()), [Gate("input", 0.1)])
    assert failed.sentence == (
        "--fail-on input>10%: FAILED, input at data.py:7 takes between 38 % and 38 % of a step"
    )
