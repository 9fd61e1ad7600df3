"""What is a conclusion? Derived, never stored, so that a changed rule re-judges old runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Finding:
    """What a rule says of a record, and what that rests on."""

    kind: str  # stable key
    verdict: Literal["cause", "excluded", "cannot tell", "flag"]
    severity: Literal["info", "warning", "critical"]
    sentence: str
    evidence: str
    advice: str = ""
