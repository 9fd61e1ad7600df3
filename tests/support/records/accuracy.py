"""What did the tool say of scripts whose cause is known? Answers that are right and wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from diagnose.records.accuracy import (
    AccuracyRecord,
    Answer,
    CaseResult,
    PlantedCulprit,
    Said,
    Twins,
)
from diagnose.records.header import Header, Reading
from tests.support.records.parts import machine


def found(cause: str, file: str, line: int, gain: float) -> Said:
    """In a step of 50 ms."""
    return Said(cause, file, line, gain, gain / 0.05, verified=True)


def planted(**changes: Any) -> CaseResult:
    """An input case that the tool got right: 20 ms of 50 are lost, 21 are promised."""
    return replace(
        CaseResult(
            name="input_case",
            culprits=(PlantedCulprit("input", "slow.py", (30, 50)),),
            answer=said(found("input", "slow.py", 31, 0.021)),
            twins=twins(0.050, 0.030),
            seconds=40.0,
        ),
        **changes,
    )


def healthy(*findings: Said) -> CaseResult:
    only = found("compute", "slow.py", 1, 0.0)
    given = said(*(findings or (only,)))
    return CaseResult("compute_case", (), given, twins_reason="there is nothing to repair")


def said(*findings: Said) -> Answer:
    return Answer("The step waits.", 300, Reading(0.05), Reading(0.002), findings)


def twins(slow: float, fixed: float, work: int = 1) -> Twins:
    jitter = (0.999, 1.0, 1.001, 1.0, 0.998, 1.002, 1.0)
    return Twins(tuple(slow * j for j in jitter), tuple(fixed * j for j in jitter), work)


def record_of(*cases: CaseResult) -> AccuracyRecord:
    return AccuracyRecord(
        header=Header(
            tool_version="1",
            label="accuracy",
            created="2025-01-01 00:00 UTC",
            source="hardware",
            effort="full",
            machine=machine(gpus=0),
        ),
        tool="python -m diagnose script",
        planned=tuple(case.name for case in cases),
        cases=cases,
        complete=True,
    )


def golden_record() -> AccuracyRecord:
    """A right answer, a silent tool, a false alarm, a wrong cause, an unseen script."""
    other = said(found("host", "slow.py", 30, 0.02))
    return record_of(
        planted(),
        planted(name="sync_case", answer=None, answer_reason="no answer after 5 s"),
        healthy(found("sync", "slow.py", 9, 0.01)),
        planted(name="wrong_case", answer=other, unseen=True),
    )
