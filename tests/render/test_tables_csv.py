"""Do the tables of a report reach a spreadsheet, with their units, and is a bad folder told?"""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from diagnose.render import store
from diagnose.render.check import write_tables
from tests.support.cli import diagnose_here
from tests.support.records.experiments import whole_catalogue
from tests.support.records.run import run_record


@pytest.fixture
def reports(tmp_path: Path) -> Path:
    for record in (run_record(), whole_catalogue(gpus=1)):
        store.save(record, tmp_path / "reports" / run_record().header.label)
    return tmp_path / "reports"


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_every_table_has_a_file_with_units_in_its_headers(reports: Path, tmp_path: Path) -> None:
    outcome = diagnose_here("report", "--reports", reports, "--csv", tmp_path / "tables")
    assert outcome.code == 0, outcome.err
    folder = tmp_path / "tables" / run_record().header.label
    names = {each.name for each in folder.iterdir()}
    assert "optimize-what-each-change-brings.csv" in names
    rows = read(folder / "optimize-what-each-change-brings.csv")
    mask = next(row for row in rows if "dynamic_mask" in row["change"])
    low, center, high = (
        float(mask[f"speed-up (99 % interval){end} (ratio)"]) for end in (" low", "", " high")
    )
    assert low < center < high
    assert center == pytest.approx(9, rel=0.01)
    assert all("|" not in each for row in rows for each in row)


def test_a_folder_that_cannot_be_written_is_told(reports: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(store.StoreError, match=r"cannot be written .* another folder by --csv"):
        write_tables(next(each for each in reports.iterdir() if each.is_dir()), tmp_path / "file")
