"""`optimize` as its user runs it, at tiny size."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli import diagnose


def test_a_workload_without_a_catalogue_is_refused() -> None:
    outcome = diagnose("optimize", "--workload", "bert")
    assert outcome.code == 2
    assert "workload bert has no catalogue of optimisations; dgca has one" in outcome.complaint


def test_an_unknown_optimisation_is_refused_with_the_known_ones() -> None:
    outcome = diagnose("optimize", "--only", "magic")
    assert outcome.code == 2
    assert "magic" in outcome.err
    assert "apply_prompt" in outcome.err


def test_experiments_and_the_line_to_blame(tmp_path: Path) -> None:
    outcome = diagnose(
        "optimize", "--size", "tiny", "--smoke", "--only", "dynamic_mask", "dataset_clone",
        "--annotations", "--label", "o", "--reports", tmp_path, DIAGNOSE_CACHE=str(tmp_path / "c"),
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    assert "::warning file=bench/dgca/prompt.py,line=" in outcome.out
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
    text = (tmp_path / "o" / "optimize.md").read_text()
    assert "This is no result" in text
    assert "prompt.py" in text
    assert diagnose("check", "--reports", tmp_path).code == 1, "a smoke run must not be kept"
