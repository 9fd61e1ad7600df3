"""What is a conclusion? Derived, never stored, so that a changed rule re-judges old runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

Verdict = Literal["cause", "excluded", "cannot tell", "flag"]
Severity = Literal["info", "warning", "critical"]
Case = TypeVar("Case")


@dataclass(frozen=True)
class Finding:
    """What a rule says of a record, and what that rests on."""

    kind: str  # stable key
    verdict: Verdict
    severity: Severity
    sentence: str
    evidence: str
    advice: str = ""


@dataclass(frozen=True)
class Rule(Generic[Case]):
    """One row of a table of findings, for sentences that are the same in every record."""

    kind: str
    verdict: Verdict
    severity: Severity
    sentence: str
    find: Callable[[Case], str | bool | None]  # the evidence, or nothing where it does not hold
    advice: str = ""

    def judge(self, case: Case) -> list[Finding]:
        found = self.find(case)
        if not found:
            return []
        words = (self.sentence, str(found), self.advice)
        return [Finding(self.kind, self.verdict, self.severity, *words)]
