"""Do both sides compute the same? Compared tensor by tensor, before anything is timed."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from diagnose.records.experiments import Equality, EqualityCheck


def compare_outcomes(
    before: Mapping[str, torch.Tensor],
    after: Mapping[str, torch.Tensor],
    tolerance: float,
    *,
    claimed: bool = True,
) -> Equality:
    """One check per named tensor; a name that one side lacks is a difference."""
    names = list(dict.fromkeys([*before, *after]))
    checks = tuple(_compare(name, before.get(name), after.get(name), tolerance) for name in names)
    return Equality(checks, "equal" if claimed else "not claimed")


def refutes(equality: Equality) -> bool:
    """Then nothing is timed: a faster way to another result is not faster."""
    return equality.claim == "equal" and not all(check.equal for check in equality.checks)


def _compare(
    name: str, before: torch.Tensor | None, after: torch.Tensor | None, tolerance: float
) -> EqualityCheck:
    if before is None or after is None:
        side = "before" if before is None else "after"
        return _unequal(name, tolerance, f"missing on the side '{side}'")
    if before.shape != after.shape:
        shapes = f"shapes {tuple(before.shape)} and {tuple(after.shape)}"
        return _unequal(name, tolerance, shapes)
    samples = before.shape[0] if name.startswith("per sample") and before.dim() else 0
    if before.numel() == 0:
        return EqualityCheck(name, tolerance, 0.0, 0 if samples else None, samples, True)
    a, b = before.detach().cpu().double(), after.detach().cpu().double()
    # Where both are the same infinity or both are not a number, they agree.
    same = (a == b) | (a.isnan() & b.isnan())
    distance = torch.where(same, torch.zeros_like(a), (a - b).abs() / (1 + a.abs()))
    differs = ~(distance <= tolerance)  # also where the distance is not a number
    finite = bool(distance.isfinite().all())
    wrong = int(differs.reshape(samples, -1).any(dim=1).sum()) if samples else None
    return EqualityCheck(
        name=name,
        tolerance=tolerance,
        worst=float(distance.max()) if finite else None,
        differing_samples=wrong,
        samples=samples,
        equal=not bool(differs.any()),
        remark="" if finite else "one side is not finite where the other is",
    )


def _unequal(name: str, tolerance: float, remark: str) -> EqualityCheck:
    return EqualityCheck(name, tolerance, None, None, 0, False, remark)
