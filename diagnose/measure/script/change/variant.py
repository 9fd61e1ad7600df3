"""What is one change of a running script, and which changes do all ranks make together?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from diagnose.measure.script.patches import Patches
from diagnose.measure.script.ranks import Ranks
from diagnose.records.codec import from_dict, to_dict
from diagnose.records.script import PLAIN, Cause, Change, Site


@dataclass(frozen=True)
class Variant:
    """One change, and how to make it."""

    name: str
    cause: Cause
    what: str
    site: Site | None
    begin: Callable[[Patches], None]  # until the patches are undone
    against: str = PLAIN
    settle: int = 1  # steps after which it, or its absence, has taken effect
    samples: float = 1.0
    uses: Callable[[], int] | None = None  # counts up whenever it takes effect
    worth: float = 0.0  # seconds per step that it may give back at most
    risky: bool = False  # the script may not expect it, so it is tried after all others
    spares: float = 0.0  # nodes of the backward graph, per step, that it leaves out by itself
    wanted: bool = True  # else it is only made where another rank wants it
    shared: bool = False  # all ranks must make it, or none

    def describe(self, failed: str = "") -> Change:
        return Change(
            self.name,
            self.cause,
            self.against,
            self.what,
            self.site,
            self.samples,
            failed,
        )


def unchanged(name: str) -> Variant:
    return Variant(name, "compute", "nothing", None, lambda patches: None)


def choose_together(
    ranks: Ranks, variants: Sequence[Variant], unable: Sequence[str]
) -> list[Variant]:
    """What every rank makes in the same windows; `unable` names what this one has but cannot.

    A rank that has nothing of the kind takes part unchanged.
    """
    able = {
        each.name: {
            "wanted": each.wanted,
            "shared": each.shared,
            "settle": each.settle,
            "worth": each.worth,
            "risky": each.risky,
            "change": to_dict(each.describe()),
        }
        for each in variants
    }
    mine = {each.name: each for each in variants}
    return [
        replace(mine.get(told["name"]) or _elsewhere(told["change"]), settle=told["settle"])
        for told in ranks.decide({"able": able, "unable": list(unable)}, _choose)
    ]


def _choose(answers: list[Any]) -> list[Any]:
    """The most promising first, and what is risky last."""
    chosen = []
    for name in dict.fromkeys(name for each in answers for name in each["able"]):
        told = [each["able"][name] for each in answers if name in each["able"]]
        blocked = any(name in each["unable"] for each in answers)
        alone = len(told) < len(answers) and any(each["shared"] for each in told)
        if any(each["wanted"] for each in told) and not blocked and not alone:
            told.sort(key=lambda each: not each["wanted"])
            settle = max(each["settle"] for each in told)
            order = (any(each["risky"] for each in told), -max(each["worth"] for each in told))
            each = {"name": name, "settle": settle, "change": told[0]["change"]}
            chosen.append((order, each))
    return [each for _, each in sorted(chosen, key=lambda pair: pair[0])]


def _elsewhere(change: Any) -> Variant:
    told = from_dict(Change, change, "another rank's change")
    return replace(
        unchanged(told.variant),
        cause=told.cause,
        what=told.what,
        site=told.site,
        against=told.against,
        samples=told.samples,
    )
