"""Does the table of the small model's guide say what its records say, whatever was measured?"""

from __future__ import annotations

from dataclasses import replace

from diagnose.analyze.optimize.experiment import judge_all
from diagnose.records.experiments import OptimizeRecord
from diagnose.render.optimize.section_two import before_after_factor
from tests.support.records.experiments import compare
from tests.support.records.series import batch, rung, series_record, with_utilization


def cells(record: OptimizeRecord) -> dict[str, list[str]]:
    lines = "\n".join(before_after_factor(record, judge_all(record))).splitlines()[2:]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {row[0]: row[1:] for row in rows}


def loader(before: float, after: float) -> object:
    facts = {"before_data_wait_share": before, "after_data_wait_share": after}
    return compare("no_workers", 1.5, scope="training epoch", facts=facts)


def test_speed_batch_and_epoch_have_their_own_factors() -> None:
    steps = [
        rung("no_workers", 1.5),
        with_utilization(rung("batch_256", 2.0, watts=(200.0, 300.0)), 0.3, 0.8),
    ]
    record = series_record(loader(0.4, 0.1), batch(256, 1.4), rungs=steps, gpus=1)  # type: ignore[arg-type]
    found = cells(record)
    assert found["utilization"][:3] == ["30 %", "80 %", "2.667x"]
    assert found["waiting for data"][:3] == ["40 %", "10 %", "0.2500x"]
    assert found["samples/s"][2].startswith("2.00")
    assert found["s per epoch"][2] == found["samples/s"][2]
    assert found["ms per batch"][2].startswith("1.00"), "a batch of twice the samples"


def test_what_was_not_measured_has_no_row() -> None:
    found = cells(series_record(rungs=[rung("set_to_none", 0.8)]))
    assert set(found) >= {"samples/s", "s per epoch"}
    assert not {"utilization", "waiting for data", "ms per batch"} & set(found)
    assert found["samples/s"][2].startswith("0.7995"), "slower is shown as slower"
    nothing = replace(series_record(), rungs=())
    assert before_after_factor(nothing, ()) == []
