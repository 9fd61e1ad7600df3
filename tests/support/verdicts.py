"""What do the rules say of a record? The questions that their tests ask."""

from __future__ import annotations

from diagnose.analyze.findings import Finding
from diagnose.analyze.run.rules import answer, judge
from diagnose.records.run import RunRecord


def found(record: RunRecord, kind: str) -> Finding:
    matching = [each for each in judge(record) if each.kind == kind]
    assert len(matching) == 1, f"{kind}: {matching}"
    return matching[0]


def kinds(record: RunRecord, verdict: str) -> set[str]:
    return {each.kind for each in judge(record) if each.verdict == verdict}


def tell(record: RunRecord) -> str:
    return answer(record, judge(record))
