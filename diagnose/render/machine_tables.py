"""Where and on what data was it measured? For reports that are no Page yet; see closing.py."""

from __future__ import annotations

from diagnose.records.experiments import OptimizeRecord
from diagnose.records.run import RunRecord
from diagnose.render.closing import data_blocks, machine_blocks
from diagnose.render.page import no_result_blocks


def no_result(record: RunRecord | OptimizeRecord) -> list[str]:
    return no_result_blocks([record.header])


def data(record: RunRecord) -> list[str]:
    return data_blocks(record.workload)


def machine(record: RunRecord) -> list[str]:
    return machine_blocks(record.header.machine)
