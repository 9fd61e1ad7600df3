"""What became of a claim? The questions that the tests of the ledgers ask."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from diagnose.analyze.claims.judges import Claim, ClaimResult
from diagnose.analyze.claims.ledger import judge_claims
from diagnose.analyze.optimize.experiment import judge_all
from diagnose.records.experiments import OptimizeRecord


def results(record: OptimizeRecord) -> dict[str, ClaimResult]:
    return by_name(judge_claims(record, judge_all(record)))


def result(record: OptimizeRecord, start: str) -> ClaimResult:
    return only(results(record), start)


def by_name(judged: Sequence[tuple[Claim, ClaimResult]]) -> dict[str, ClaimResult]:
    return {f"{claim.id} {claim.says}": result for claim, result in judged}


def only(named: Mapping[str, ClaimResult], start: str) -> ClaimResult:
    """The one whose name begins so."""
    found = [each for name, each in named.items() if name.startswith(start)]
    assert len(found) == 1, f"{start}: {len(found)} claims"
    return found[0]
