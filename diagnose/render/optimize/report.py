"""What does the report on the optimizations say? A pure function from a record to a page."""

from __future__ import annotations

from collections.abc import Sequence

from diagnose.analyze.optimize import series_causes
from diagnose.analyze.optimize.disturbances import (
    find_disturbances,
    find_unreached,
    name_each,
)
from diagnose.analyze.optimize.effects import (
    ALL_TOGETHER,
    best_changes,
    either,
    is_proven_equal,
    leaders,
    locate,
)
from diagnose.analyze.optimize.experiment import Outcome, judge_all
from diagnose.analyze.optimize.ladder import climb, judge_ladder
from diagnose.analyze.optimize.launches import most_repeated
from diagnose.analyze.optimize.plans import best_plans, combined, find_plans
from diagnose.analyze.optimize.work import describe_backbone_share
from diagnose.analyze.units import spread
from diagnose.records.experiments import OptimizeRecord
from diagnose.render.findings import finding_sections
from diagnose.render.markdown import prose
from diagnose.render.optimize import experiments, tables
from diagnose.render.optimize.before_after import before_after
from diagnose.render.optimize.figures import LADDER, LAUNCHES, figures
from diagnose.render.optimize.launches import blamed_line, launch_map
from diagnose.render.page import Page, Place, Section, image
from diagnose.render.part import Part
from diagnose.render.table import Cell, code


def page(record: OptimizeRecord) -> Page:
    outcomes = judge_all(record)
    findings = find_disturbances(record, outcomes)
    if record.workload.name == series_causes.WORKLOAD:
        findings = [*series_causes.judge_series(record, outcomes), *findings]
    found = [each for each in finding_sections(findings, "Experiments", "") if any(each.blocks)]
    return Page(
        header=record.header,
        title=f"{record.header.label}: what speeds up {record.workload.name} on "
        f"{record.header.machine.device_name}",
        question="Which line is to blame, and what helps?",
        answer=answer(record, outcomes),
        sections=[*found, *_open(record, outcomes), *_folded(record, outcomes)],
        workload=record.workload,
        method=_method(record, outcomes),
    )


def _open(record: OptimizeRecord, outcomes: Sequence[Outcome]) -> list[Section]:
    """What a reader in a hurry needs, in the order of the report."""
    drawn = figures(record)
    title, blamed = "The line to blame", ["No launch map was recorded."]
    if record.maps:
        if most_repeated(record.maps[0]) is None:
            title = "The line that launches most"  # no loop, so nothing to blame it for
        drawing = image("Launches by line", LAUNCHES, drawn)
        blamed = [*blamed_line(record.maps[0]), *drawing]
    sections = [
        Section(Place.TO_DO, "What to do", _to_do(outcomes)),
        Section(Place.BOTTLENECK, title, blamed),
        Section(Place.CHANGES, "What each change brings", experiments.proven_changes(outcomes)),
        Section(Place.CHANGES, "Not equal", experiments.unequal_changes(outcomes)),
        Section(Place.BEFORE_AFTER, "Before and after", before_after(record, outcomes)),
        Section(Place.BEFORE_AFTER, "Plans", tables.plan_table(outcomes)),
        Section(Place.BEFORE_AFTER, "How long it takes", tables.totals(record, outcomes)),
    ]
    # With nothing to put on top, a ladder has no steps.
    if record.rungs or record.workload.name == series_causes.WORKLOAD:
        drawing = image("Speed, one change on top of the other", LADDER, drawn)
        blocks = [*drawing, *tables.ladder(record)]
        sections.append(Section(Place.BEFORE_AFTER, "One change on top of the other", blocks))
    if record.pace is not None:
        left = [prose(describe_backbone_share(record))]
        sections.append(Section(Place.LEFT, "What is left to gain", left))
    return sections


def _to_do(outcomes: Sequence[Outcome]) -> list[str]:
    """The best changes, as what to write instead of what."""
    lines = []
    for best, remark in _best(outcomes):
        for each in best:
            change = each.comparison
            sides = f"{change.after_text} instead of {change.before_text}"
            gain = f"{_gain(each)}{remark}"
            lines.append(
                f"- **{prose(change.title)}** ({code(change.key)}): {prose(sides)}; {prose(gain)}."
            )
    return ["\n".join(lines)] if lines else []


def _best(outcomes: Sequence[Outcome]) -> list[tuple[list[Outcome], str]]:
    """The largest gain that keeps the results; beside it one that does not, if it is larger."""
    equal, other = (best_changes(outcomes, equal=each) for each in (True, False))
    if any(each in equal for each in leaders([*equal, *other])):
        other = []
    found = [(equal, ""), (other, ", but the results may differ")]
    return [each for each in found if each[0]]


def _gain(outcome: Outcome) -> str:
    assert outcome.timed is not None
    return f"{spread(outcome.timed.speedup)}x per {outcome.comparison.scope}"


def _folded(record: OptimizeRecord, outcomes: Sequence[Outcome]) -> list[Section]:
    """What the open sections rest on; a title without blocks is not shown."""
    timed = (*outcomes, *judge_ladder(record))
    details = [
        *((f"Launch map: {each.form}", launch_map(each)) for each in record.maps),
        ("All experiments", experiments.before_after(outcomes)),
        ("Where the effect sits", _list(locate(outcomes))),
        ("Coverage", tables.coverage(outcomes)),
        ("Loss at equal samples", tables.losses(outcomes)),
        ("Behind the verdicts", [*experiments.evidence(timed), *experiments.facts(timed)]),
    ]
    return [Section(Place.DETAILS, title, blocks, folded=True) for title, blocks in details]


def answer(record: OptimizeRecord, outcomes: Sequence[Outcome]) -> str:
    """The largest proven gain, what is wrong as published, and what all of it brings."""
    parts = [_largest(outcomes), *_together(record, outcomes), *_wrong(outcomes)]
    text = "; ".join(parts) + "."
    broken = [each for each in outcomes if each.verdict in ("FAILED", "INVALID")]
    if broken:
        text += f" Not measured: {name_each(broken, outcomes)} (see the flags)."
    if find_unreached(record) or not record.complete:
        text += " The run was not finished."
    return text


def _largest(outcomes: Sequence[Outcome]) -> str:
    texts = [
        either([f"{each.comparison.key}: {_gain(each)}" for each in best]) + remark
        for best, remark in _best(outcomes)
    ]
    if not texts:
        return "No single change is proven to be faster"
    beside = "".join(f" ({text})" for text in texts[1:])
    return f"The largest proven gain of a single change is {texts[0]}{beside}"


def _wrong(outcomes: Sequence[Outcome]) -> list[str]:
    parts = []
    for form, words in (("as published", "wrong as published"), ("after", "not equal")):
        names = dict.fromkeys(
            each.comparison.key
            for each in outcomes
            if each.verdict == "NOT_EQUAL" and each.comparison.form == form
        )
        if names:
            parts.append(f"{words}: {', '.join(names)}")
    return parts


def _together(record: OptimizeRecord, outcomes: Sequence[Outcome]) -> list[str]:
    if record.rungs:
        steps = climb(record)
        if not steps:
            return ["nothing could be put on top of another"]
        keys = [each.comparison.key for each in steps]
        proven = {each.comparison.key for each in outcomes if is_proven_equal(each)}
        differing = ", ".join(key for key in keys if key not in proven)
        remark = f", but the results may differ by {differing}" if differing else ""
        return [f"together ({', '.join(keys)}): {_whole(steps[-1])}{remark}"]
    if find_plans(outcomes):
        plans = [f"{each.comparison.title}: {_whole(each)}" for each in best_plans(outcomes)]
        if not plans:
            return ["no plan is proven to be faster with the same answers"]
        return [f"the best plan that keeps the answers is {either(plans)}"]
    found = []
    for each in combined(record, outcomes):
        form = each.comparison.key.removeprefix(ALL_TOGETHER).replace("_", " in ")
        if each.verdict != "SKIPPED":
            found.append(f"all changes together{form}: {_whole(each)}")
    return found


def _whole(outcome: Outcome) -> str:
    speedup = "" if outcome.timed is None else f"{spread(outcome.timed.speedup)}x, "
    return f"{speedup}{outcome.verdict}"


def _method(record: OptimizeRecord, outcomes: Sequence[Outcome]) -> list[tuple[str, Cell]]:
    blocks = [each.timed.blocks for each in outcomes if each.timed is not None]
    return [
        ("experiments", f"{len(outcomes)}, of them timed {len(blocks)}"),
        ("blocks per experiment", f"{min(blocks)} to {max(blocks)}" if blocks else "none"),
        ("experiments planned", ", ".join(record.planned)),
    ]


def _list(sentences: Sequence[str]) -> list[str]:
    return ["\n".join(f"- {prose(each)}." for each in sentences)] if sentences else []


PART = Part(OptimizeRecord, "Which line is to blame, and what helps?", page, figures)
