"""Which steps are slow, and why? One sentence about those that take much longer than the rest."""

from __future__ import annotations

from collections import Counter

from diagnose.analyze.units import number, percent
from diagnose.records.script import ScriptRecord, SlowStep

# Of what a slow step takes longer: so much must pass in one place to name it.
MOST_OF_IT = 0.5
# Lost turns of the processor, or pages, beyond those of a usual step.
FEWEST_SWITCHES, FEWEST_FAULTS = 3, 2000
_WORDS = {
    "garbage": "Python's garbage collector",
    "input": "waiting for the loader",
    "checkpoint": "a checkpoint",
    "logging": "logging",
    "evaluation": "evaluation",
    "communication": "waiting for other ranks",
}
_OTHERS, _PAGES = "other processes on these cores", "new memory from the system (page faults)"


def explain(step: SlowStep) -> str:
    """Empty where nothing that was looked at explains most of it."""
    longer = step.seconds - step.usual_seconds
    phase = max(step.over, key=lambda each: step.over[each], default="")
    if phase in _WORDS and step.over[phase] >= MOST_OF_IT * longer:
        return _WORDS[phase]
    if step.switches >= FEWEST_SWITCHES:
        return _OTHERS
    if step.page_faults >= FEWEST_FAULTS:
        return _PAGES
    if phase and step.over[phase] >= MOST_OF_IT * longer:
        return f"the {phase} itself" if phase != "host" else "work outside the model"
    return ""


def write_slow(record: ScriptRecord) -> str:
    slow = record.slow_steps
    if not slow or not record.sampled_steps:
        return ""
    reasons = Counter(explain(each) or "unexplained" for each in slow)
    told = ", ".join(f"{count} {why}" for why, count in reasons.most_common(3))
    longer = sum(each.seconds - each.usual_seconds for each in slow)
    share = longer / (record.sampled_steps * slow[0].usual_seconds + longer)
    return (
        f"{len(slow)} of {record.sampled_steps} sampled steps took more than 1.5 times the usual "
        f"{number(slow[0].usual_seconds * 1e3, 3)} ms, up to {number(slow[0].seconds * 1e3, 3)} ms "
        f"({percent(share)} of all time): {told}"
    )
