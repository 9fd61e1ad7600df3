"""Does a job pass what was asked of it? A cause may take this share of a step, and no more.

A gate fails where all of an interval is above it and passes where all of it is below. What lies
on both sides, or could not be told, is inconclusive: that is no pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from diagnose.analyze.script.words import name_line
from diagnose.analyze.units import percent
from diagnose.records.diagnosis import Diagnosis, Gate

Verdict = Literal["PASSED", "FAILED", "INCONCLUSIVE"]


@dataclass(frozen=True)
class Judgment:
    """What came of one gate, and why."""

    gate: Gate
    verdict: Verdict
    why: str

    @property
    def sentence(self) -> str:
        return f"--fail-on {self.gate.name}: {self.verdict}, {self.why}"


def judge_gates(diagnosis: Diagnosis, gates: Sequence[Gate]) -> list[Judgment]:
    return [Judgment(gate, *_judge(diagnosis, gate)) for gate in gates]


def _judge(diagnosis: Diagnosis, gate: Gate) -> tuple[Verdict, str]:
    if diagnosis.step_ms is None or not diagnosis.findings:
        return "INCONCLUSIVE", "there is no diagnosis"

    def asked(cause: str) -> bool:
        return cause == (gate.cause or cause)

    mean = diagnosis.step_ms.mean
    known = [
        (each.cause, f" at {name_line(each.file, each.line)}", each.gain_ci)
        for each in diagnosis.findings
    ]
    known += [(each.cause, "", each.gain_ci) for each in diagnosis.excluded]
    doubtful = ""
    for cause, where, gain in known:
        if not asked(cause):
            continue
        low, high = (end / mean for end in gain)
        told = f"{cause}{where} takes between {percent(low)} and {percent(high)} of a step"
        if low > gate.share:
            return "FAILED", told
        if high > gate.share:
            doubtful = doubtful or told
    # What is missing of the whole run could have been any cause.
    open_ones = [e for e in diagnosis.cannot_tell if asked(e.cause) or e.cause == "compute"]
    if open_ones and not doubtful:
        doubtful = f"undecided: {open_ones[0].cause}, {open_ones[0].reason}"
    if doubtful:
        return "INCONCLUSIVE", doubtful
    return "PASSED", "nothing above it was found"
