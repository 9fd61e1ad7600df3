"""Is the page of claims what all records together render to, and is it checked?"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from diagnose.render import check, store
from diagnose.render.claims import render_claims
from tests.support.records.experiments import optimize_record, whole_catalogue
from tests.support.records.generation import whole_generation
from tests.support.records.scaling import ddp_options, scaling_record
from tests.support.records.series import whole_series

GOLDEN = Path(__file__).parent / "golden" / "claims.md"


def test_the_golden_page() -> None:
    ranks = scaling_record(comparisons=ddp_options(), gpus=2)
    text = render_claims([whole_catalogue(gpus=1), ranks, whole_series(), whole_generation()])
    if os.environ.get("UPDATE_GOLDEN") == "1":
        GOLDEN.write_text(text, encoding="utf-8")
    assert text == GOLDEN.read_text(encoding="utf-8")


def test_nothing_is_written_where_nothing_was_claimed() -> None:
    record = optimize_record()
    own = replace(record, workload=replace(record.workload, name="my_job"))
    assert render_claims([own]) == ""


def test_the_page_is_written_beside_the_index_and_checked(tmp_path: Path) -> None:
    store.save(whole_catalogue(), tmp_path / "xeon")
    check.write_report(tmp_path / "xeon")
    check.write_index(tmp_path)
    page = tmp_path / "claims" / "report.md"
    assert "[xeon](../xeon/report.md)" in page.read_text(encoding="utf-8")
    assert check.check(tmp_path) == []
    edited = page.read_text(encoding="utf-8").replace("REFUTED", "CONFIRMED")
    page.write_text(edited, encoding="utf-8")
    (problem,) = check.check(tmp_path)
    assert "claims/report.md differs from its record" in problem
    page.unlink()
    (problem,) = check.check(tmp_path)
    assert "claims/report.md cannot be read" in problem


def test_a_page_without_claims_is_left_over_and_removed(tmp_path: Path) -> None:
    record = optimize_record()
    own = replace(record, workload=replace(record.workload, name="my_job"))
    store.save(own, tmp_path / "xeon")
    check.write_report(tmp_path / "xeon")
    page = tmp_path / "claims" / "report.md"
    store.write_atomically(page, b"# Old\n")
    check.write_index(tmp_path)
    assert not page.exists()
    store.write_atomically(page, b"# Old\n")
    (problem,) = check.check(tmp_path)
    assert "claims/report.md" in problem
    with pytest.raises(store.LabelError, match="page of claims"):
        store.validate_label("claims")
