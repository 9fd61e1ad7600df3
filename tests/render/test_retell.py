"""Does a record told as another keep its header, so that the same machine and date are told?"""

from __future__ import annotations

from dataclasses import fields

import pytest

from diagnose.records.header import WorkloadFacts
from diagnose.records.run import RunRecord
from diagnose.render.retell import retell
from diagnose.render.store import Record
from tests.support.records.link import bandwidth_record
from tests.support.records.scaling import scaling_record

JOB = WorkloadFacts("job", "tiny", {}, 1)


@pytest.mark.parametrize("record", [scaling_record(gpus=2), bandwidth_record()])
def test_whatever_both_kinds_have_is_kept(record: Record) -> None:
    made = retell(record, RunRecord, seed=3, workload=JOB, planned=("a",))
    shared = {each.name for each in fields(record)} & {each.name for each in fields(RunRecord)}
    kept = {name: getattr(record, name) for name in shared}
    assert {"label", "machine", "complete"} <= shared
    assert {**kept, "seed": 3, "workload": JOB, "planned": ("a",), "stages": ()} == vars(made)
