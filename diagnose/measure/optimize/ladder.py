"""In which order do the changes go on top of each other? By what each of them gained alone.

Runs in the parent, which knows all experiments; no torch is loaded for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from diagnose.records.experiments import Comparison, Equality, find_blocks
from diagnose.records.header import Setting
from diagnose.records.sequential import ratio_interval
from diagnose.records.stats import Interval

ALONE = "proven for each change alone"


@dataclass(frozen=True)
class Plan:
    """What the measuring process says about its ladder."""

    scope: str
    # By key of the optimisation: the settings that it changes.
    patches: Mapping[str, Mapping[str, Setting]]


def order_by_gain(comparisons: Sequence[Comparison], plan: Plan) -> tuple[str, ...]:
    """Keys of the changes that certainly gain, the largest gain first.

    Of changes that set the same setting only the better one can be had.
    """
    gains = {
        each.key: found.center
        for each in comparisons
        if (found := _gain(each, plan)) is not None and found.is_above(1.0)
    }
    chosen: list[str] = []
    taken: set[str] = set()
    for key in sorted(gains, key=lambda key: -gains[key]):
        names = set(plan.patches[key])
        if not names & taken:
            chosen.append(key)
            taken |= names
    return tuple(chosen)


def carry_proofs(
    rung: Comparison, keys: Sequence[str], comparisons: Sequence[Comparison], scope: str
) -> Comparison:
    """A rung is as equal to the base as the changes that it is made of."""
    proofs = [
        (each.key, each.equality)
        for each in comparisons
        if each.key in keys and each.scope == scope and each.equality is not None
    ]
    checks = tuple(
        replace(check, name=f"{key}: {check.name}")
        for key, proof in proofs
        for check in proof.checks
    )
    claimed = all(proof.claim == "equal" for _, proof in proofs)
    equality = Equality(checks, "equal" if claimed else "not claimed", ALONE)
    return replace(rung, equality=equality)


def _gain(comparison: Comparison, plan: Plan) -> Interval | None:
    """The speed-up, or None where nothing was timed."""
    if comparison.key not in plan.patches or comparison.scope != plan.scope:
        return None
    if comparison.form != "after" or comparison.status != "done":
        return None
    if comparison.before is None or comparison.control is None or comparison.after is None:
        return None
    return ratio_interval(find_blocks(comparison.before, comparison.control, comparison.after))
