"""Does the page say what another setting of the machine changes?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench import settings
from bench.planted.truth import CASES
from diagnose.render import store
from tests.support.records.accuracy import (
    found,
    healthy,
    planted,
    record_of,
    said,
    twins,
)


def test_every_sampled_script_is_one_planted_script() -> None:
    names = [each.name for each in CASES]
    assert len(settings.SAMPLE) == len(set(settings.SAMPLE)) == 20
    for part in settings.SAMPLE:
        assert [name for name in names if part in name] == [part]


def test_the_page_names_what_a_setting_changes(tmp_path: Path) -> None:
    wrong = planted(answer=said(found("host", "slow.py", 9, 0.01)))
    alarm = healthy(found("sync", "slow.py", 9, 0.01))
    free = replace(planted(twins=twins(0.05, 0.05)), name="free_case")
    cases = ([planted(), healthy()], [wrong, alarm], [free])
    for setting, each in zip(settings.SETTINGS, cases, strict=False):
        record = record_of(*each)
        record = replace(record, header=replace(record.header, label=setting.label))
        store.save(record, tmp_path / setting.label)
    rows = {each.name: settings.read(each, tmp_path) for each in settings.SETTINGS}
    page = settings.write_page(rows)
    lines = page.splitlines()
    assert "| as it is | 2 of 2 | 2 of 2 | 0 | 0 |" in lines
    assert "| one thread | 0 of 2 | 0 of 2 | 1 | 0 |" in lines
    assert "| one shared core | 0 of 0 | 0 of 0 | 0 | 1 |" in lines
    assert "| input_case | input | **host** (wrong cause) | not asked | not asked |" in lines
    assert "| free_case | not asked | not asked | costs nothing here | not asked |" in lines
    usual = rows["as it is"]
    same = settings.write_page({"as it is": usual, "one thread": usual})
    assert same.endswith("All settings agree about every script.\n")


@pytest.mark.parametrize("setting", settings.SETTINGS)
def test_a_setting_that_was_not_measured_has_no_rows(
    setting: settings.Setting, tmp_path: Path
) -> None:
    assert settings.read(setting, tmp_path) == {}
