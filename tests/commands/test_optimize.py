"""`optimize` as its user runs it, at tiny size."""

from __future__ import annotations

import json
from pathlib import Path

from diagnose.records.sequential import fewest_blocks
from tests.support.cli import ROOT, diagnose, diagnose_here

TREATED = ROOT / "tests" / "support" / "jobs" / "treated.py"


def test_an_unknown_optimisation_is_refused_with_the_known_ones() -> None:
    outcome = diagnose_here("optimize", "--size", "tiny", "--only", "magic")
    assert outcome.code == 2
    assert "workload dgca has no optimization 'magic'; it has apply_prompt," in outcome.complaint


def test_experiments_and_the_line_to_blame(tmp_path: Path) -> None:
    outcome = diagnose(
        "optimize", "--size", "tiny", "--smoke", "--only", "dynamic_mask", "dataset_clone",
        "--label", "o", "--reports", tmp_path, DIAGNOSE_CACHE=str(tmp_path / "c"),
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    record = json.loads((tmp_path / "o" / "optimize.json").read_text())
    made = [(each["key"], each["form"], each["status"]) for each in record["comparisons"]]
    assert made == [
        ("dynamic_mask", "after", "done"),
        ("dynamic_mask", "as published", "done"),
        ("dataset_clone", "after", "done"),
    ]
    original, optimised = record["maps"]
    loop = max(original["lines"], key=lambda line: line["trips"])
    assert loop["function"] == "loop_prompts"
    assert loop["trips"] == 2 * 3 * 4, "two prompts of three, batch 4"
    assert "loop_prompts" not in {line["function"] for line in optimised["lines"]}
    text = (tmp_path / "o" / "report.md").read_text()
    assert "prompt.py" in text
    checked = diagnose_here("check", "--allow-dirty", "--reports", tmp_path)
    assert checked.code == 1, "a smoke run must not be kept"


def test_whatever_an_optimisation_does_the_rest_go_on(tmp_path: Path) -> None:
    outcome = diagnose_here(
        "optimize", "--workload", TREATED, "--smoke", "--label", "t", "--reports", tmp_path
    )
    assert outcome.code == 3
    assert "Traceback" not in outcome.err
    record = json.loads((tmp_path / "t" / "optimize.json").read_text())
    made = [(each["key"], each["scope"], each["status"]) for each in record["comparisons"]]
    assert made == [
        ("first", "forward", "done"),
        ("raises", "forward", "done"),
        ("raises", "", "failed"),
        ("drifts", "forward", "invalid"),
        ("starves", "", "failed"),
        ("vanishes", "", "failed"),
        ("last", "forward", "done"),
    ]
    reasons = {each["key"]: each["reason"] for each in record["comparisons"]}
    assert reasons["raises"].startswith("KeyError: 'no such column' (treated.py:")
    assert "changed its parameters" in reasons["drifts"]
    assert reasons["starves"].startswith("out of memory: ")
    assert "exited with 9" in reasons["vanishes"]
    assert record["complete"]
    (own,) = record["maps"]
    assert own["form"] == "as it is"
    assert {line["file"] for line in own["lines"]} - {""} == {"treated.py"}


def test_a_change_of_ones_own_is_proven(tmp_path: Path) -> None:
    example = ROOT / "bench" / "examples" / "my_job.py"
    outcome = diagnose_here(
        "optimize", "--workload", example, "--size", "tiny", "--smoke", "--label", "m",
        "--reports", tmp_path, "--json",
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    (verdict,) = json.loads(outcome.out)["verdicts"]
    assert verdict["name"] == "grid_once"
    record = json.loads((tmp_path / "m" / "optimize.json").read_text())
    (made,) = record["comparisons"]
    assert [check["equal"] for check in made["equality"]["checks"]] == [True]
    assert len(made["after"]["timing"]["slot_seconds"]) >= fewest_blocks()
