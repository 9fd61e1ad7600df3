"""Which change is best, on what does it act, and where does its effect sit?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from diagnose.analyze import derive
from diagnose.analyze.optimize.experiment import Outcome
from diagnose.analyze.units import milliseconds, percent, spread
from diagnose.records.experiments import DATA_WAIT, Comparison
from diagnose.records.stats import Interval

STEP, EPOCH, PASS = "training step", "training epoch", "evaluation pass"
# A bundle names its parts in this fact; the key of all changes of a training step begins so.
PARTS, ALL_TOGETHER = "parts", "all_together"
# What a scope does before its backward pass begins.
FORWARD_OF = {STEP: "forward", "part, forward and backward": "part, forward"}


def find(
    outcomes: Sequence[Outcome], key: str, scope: str | None = None, form: str = "after"
) -> Outcome | None:
    """The first outcome of a change, in this scope if one is given.

    A change that ended before it was timed carries all of its scopes.
    """
    return next(
        (
            each
            for each in outcomes
            if each.comparison.key == key
            and each.comparison.form == form
            and scope in (None, *each.comparison.scope.split(" / "))
        ),
        None,
    )


def widest(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Each change once, in the scope that counts: the whole job before any part of it."""
    chosen: dict[str, Outcome] = {}
    for each in outcomes:
        comparison = each.comparison
        if comparison.form != "after":
            continue
        known = chosen.get(comparison.key)
        if known is None or (is_whole(comparison) and not is_whole(known.comparison)):
            chosen[comparison.key] = each
    return list(chosen.values())


def is_bundle(comparison: Comparison) -> bool:
    return comparison.key.startswith(ALL_TOGETHER) or PARTS in comparison.facts


def is_whole(comparison: Comparison) -> bool:
    """Of the job, not of a part of it."""
    return bool({STEP, EPOCH, PASS} & set(comparison.scope.split(" / ")))


def is_proven_equal(outcome: Outcome) -> bool:
    equality = outcome.comparison.equality
    return (
        equality is not None
        and equality.claim == "equal"
        and bool(equality.checks)
        and all(check.equal for check in equality.checks)
    )


def best_changes(outcomes: Sequence[Outcome], *, equal: bool = True) -> list[Outcome]:
    """The largest proven gain of a single change; one of the whole job before one of a part.

    Of those that keep the results, or of those that are meant to change them.
    """
    proven = [
        each
        for each in widest(outcomes)
        if each.verdict == "FASTER"
        and not is_bundle(each.comparison)
        and is_proven_equal(each) == equal
    ]
    whole = [each for each in proven if is_whole(each.comparison)]
    # Of an evaluation only what the job as it is gains: single samples are nobody's base.
    own = [each for each in whole if not starts_elsewhere(each.comparison)]
    return leaders(own or whole or proven)


def leaders(tried: Iterable[Outcome]) -> list[Outcome]:
    """The largest speed-up, and after it every other whose interval reaches into its own.

    Experiments are timed minutes apart: only a gap between two intervals makes one the larger.
    """
    ranked = sorted((each for each in tried if each.timed is not None), key=speed, reverse=True)
    return [each for each in ranked if not _is_surpassed(each, ranked[0])]


def _is_surpassed(outcome: Outcome, best: Outcome) -> bool:
    assert outcome.timed is not None  # only what was timed is ranked
    assert best.timed is not None
    low = best.timed.speedup.low
    return low is not None and outcome.timed.speedup.is_below(low)


def either(names: Sequence[str]) -> str:
    """Those that lead, as a reader may choose among them."""
    return " or ".join(names) + (" (their intervals overlap)" if len(names) > 1 else "")


def speed(outcome: Outcome) -> float:
    return 0.0 if outcome.timed is None else outcome.timed.speedup.center


def starts_elsewhere(comparison: Comparison) -> bool:
    """Whether its gain is one over something else than the job as it is."""
    return comparison.facts.get("starts_elsewhere") is True


def describe(outcome: Outcome) -> str:
    if outcome.timed is None:
        return f"{outcome.name}: {outcome.verdict}"
    scope = outcome.comparison.scope
    return f"{outcome.name}, {scope}: {spread(outcome.timed.speedup)}x, {outcome.verdict}"


def fact_of(comparison: Comparison, name: str) -> float | None:
    """A number among the facts, or None."""
    value = comparison.facts.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def waiting_shares(comparison: Comparison) -> tuple[float, float] | None:
    """Of the time of both sides, what they waited for the next batch."""
    before, after = (fact_of(comparison, DATA_WAIT.format(side)) for side in ("before", "after"))
    return None if before is None or after is None else (before, after)


def changed_answers(comparison: Comparison) -> str:
    """How many answers differ, of how many; empty where nothing was compared."""
    checks = () if comparison.equality is None else comparison.equality.checks
    counted = [each for each in checks if each.differing_samples is not None and each.samples]
    if not counted:
        return ""
    worst = max(counted, key=lambda each: each.differing_samples or 0)
    return f"{worst.differing_samples} of {worst.samples}"


def locate(outcomes: Sequence[Outcome]) -> list[str]:
    """Does an effect sit in the forward or in the backward pass? One sentence per change."""
    found = []
    for whole in outcomes:
        scope = FORWARD_OF.get(whole.comparison.scope)
        if scope is None or whole.comparison.form != "after" or whole.timed is None:
            continue
        forward = find(outcomes, whole.comparison.key, scope)
        if forward is None or forward.timed is None or _samples(forward) != _samples(whole):
            continue
        saved, in_forward = saved_seconds(whole.comparison), saved_seconds(forward.comparison)
        share = backward_share(forward, whole)
        if saved is None or in_forward is None:
            continue
        words = "not proven" if share is None else f"{percent(share)} in the backward pass"
        found.append(
            f"{describe(whole)}: saves {milliseconds(saved)} ms, its forward pass alone "
            f"{milliseconds(in_forward)} ms: {words}"
        )
    return found


def backward_share(forward: Outcome, step: Outcome) -> float | None:
    """The part of the time saved by a whole step that the forward pass does not save."""
    if step.verdict not in ("FASTER", "SLOWER"):
        return None
    saved, in_forward = saved_seconds(step.comparison), saved_seconds(forward.comparison)
    if saved is None or in_forward is None or not saved.center:
        return None
    return min(1.0, max(0.0, 1 - in_forward.center / saved.center))


def saved_seconds(comparison: Comparison) -> Interval | None:
    if comparison.before is None or comparison.after is None:
        return None
    return derive.difference(comparison.before, comparison.after).seconds


def break_even_steps(comparison: Comparison) -> int | None:
    """After how many steps the time to compile is earned back; None if it never is."""
    seconds, saved = fact_of(comparison, "compile_seconds"), saved_seconds(comparison)
    if seconds is None or saved is None or saved.low is None or saved.low <= 0:
        return None
    return int(seconds / saved.center) + 1


def _samples(outcome: Outcome) -> int | None:
    before = outcome.comparison.before
    return None if before is None else before.samples_per_step
