"""What does the report on the optimisations say? A pure function from a record to Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from diagnose.analyze import flags
from diagnose.analyze.findings import Finding
from diagnose.analyze.optimize import coverage, curves, density, ladder, plans, series_causes
from diagnose.analyze.optimize import effects as experiment_effects
from diagnose.analyze.optimize.experiment import Outcome, judge_all
from diagnose.analyze.optimize.pace import pace_lines
from diagnose.analyze.units import spread
from diagnose.records.experiments import OptimizeRecord
from diagnose.records.run import RunRecord, StageResult
from diagnose.render import machine_tables
from diagnose.render.markdown import Align, escape, prose, table
from diagnose.render.optimize import experiments as experiment_tables
from diagnose.render.optimize.launches import launch_map
from diagnose.render.retell import retell

# The workload of the report whose tables and excluded factors are tried again.
FIRST_REPORT = "dgca"
# After so many the measuring half stops, however wide the interval still is.
MOST_BLOCKS, MOST_BLOCKS_OF_QUICK_LADDER = 30, 12
_METHOD = (
    "Both sides first compute from the same seed and the same real batch; only what is equal "
    "within the stated tolerance, |a − b| / (1 + |a|), is timed. Then blocks of {{before, before "
    "again, after}} run in random order until the interval is narrow enough or {blocks} blocks are "
    "done. The speed-up is the Hodges-Lehmann estimate of the ratios within blocks, with its "
    "exact 95 % interval. Before again is the control: how far the same code seems to differ "
    "from itself. No sample is discarded."
)


def render_optimize(record: OptimizeRecord) -> str:
    outcomes = judge_all(record)
    blocks = [
        f"# {escape(record.header.label)}: what speeds up {escape(record.workload.name)} on "
        f"{escape(record.header.machine.device_name)}",
        *machine_tables.no_result(record),
        f"**{prose(answer(record, outcomes))}**",
    ]
    for title, told in _sections(record, outcomes):
        blocks += [f"## {title}", *told]
    return "\n\n".join(blocks) + "\n"


def _sections(
    record: OptimizeRecord, outcomes: Sequence[Outcome]
) -> Iterator[tuple[str, list[str]]]:
    """What a workload has nothing to say about has no section."""
    run, is_first_report = as_run(record), record.workload.name == FIRST_REPORT
    yield "Which line", _maps(record)
    yield "Before and after", experiment_tables.before_after(outcomes)
    for title, told in (
        ("Coverage", coverage.coverage_lines(outcomes)),
        ("Plans", plans.plan_lines(outcomes)),
        ("Priority", plans.priority_lines(outcomes)),
        ("How long it takes", plans.eta_lines(record, outcomes)),
    ):
        if told:
            yield title, told
    if is_first_report:
        yield "Where the effect sits", experiment_effects.locations(outcomes)
        yield "All together", experiment_effects.first_report_table(outcomes)
    if _has_ladder(record):
        yield "The ladder", ladder.ladder_lines(record, outcomes)
    if dense := density.density_lines(outcomes):
        yield "Compute density", dense
    if losses := curves.curve_lines(outcomes):
        yield "Loss at equal samples", losses
    if is_first_report or record.pace is not None:
        yield "What is left to gain", pace_lines(record)
    if is_first_report:
        yield "Excluded factors", experiment_effects.excluded_factors(outcomes)
    if record.workload.name == series_causes.WORKLOAD:
        found = series_causes.judge_series(record, outcomes)
        yield "Findings", ["\n".join(_line(each, verdict=True) for each in found)]
    yield "Flags", _flags(record, outcomes, run)
    yield "Behind the verdicts", _evidence((*outcomes, *ladder.judge_rungs(record)))
    yield "Data", machine_tables.data(run)
    yield "Machine", machine_tables.machine(run)
    yield "How it was measured", _method(record, outcomes)


def answer(record: OptimizeRecord, outcomes: Sequence[Outcome]) -> str:
    """The largest proven gain, what is wrong as published, and what all of it brings."""
    scopes = (each.scope for each in record.rungs if each.scope)
    whole = next(scopes, series_causes.EPOCH if _has_ladder(record) else "training step")
    parts = [_largest(outcomes, whole), *_wrong(outcomes), *_together(record, outcomes)]
    text = "; ".join(parts) + "."
    broken = [each.name for each in outcomes if each.verdict in ("FAILED", "INVALID")]
    if broken:
        text += f" Not measured: {', '.join(dict.fromkeys(broken))} (see the flags)."
    if _unreached(record) or not record.complete:
        text += " The run was not finished."
    return text


def as_run(record: OptimizeRecord) -> RunRecord:
    """The experiments as stages, so that what disturbs a run is found in them the same way."""
    stages = []
    singles = [("", each) for each in record.comparisons]
    for place, each in (*singles, *(("ladder, + ", each) for each in record.rungs)):
        sides = tuple(
            side
            for side in (each.before, each.control, each.after)
            if side is not None and side.timing.slot_seconds
        )
        if sides and each.status == "done":
            published = " as published" if each.form == "as published" else ""
            key = f"{place}{each.key}{published}, {each.scope}"
            stages.append(StageResult(key, each.title, "done", measurements=sides))
    run = retell(
        record, RunRecord, seed=record.header.seed, workload=record.workload, planned=record.planned
    )
    return replace(run, stages=tuple(stages))


def _largest(outcomes: Sequence[Outcome], scope: str) -> str:
    """Of single changes; a gain of the whole step counts before one of a part."""
    proven = [
        each
        for each in outcomes
        if each.verdict == "FASTER"
        and each.comparison.form == "after"
        and each.comparison.key != "all_together"
        and plans.PARTS not in each.comparison.facts
    ]
    whole = [each for each in proven if each.comparison.scope == scope]
    # Of an evaluation only what the job as it is gains: single samples are nobody's base.
    own = [each for each in proven if plans.starts_from_base(each.comparison)]
    best = max(own or whole or proven, key=_speed, default=None)
    if best is None or best.timed is None:
        return "No single change is proven to be faster"
    return (
        f"The largest proven gain of a single change is {best.comparison.key}: "
        f"{spread(best.timed.speedup)}x per {best.comparison.scope}"
    )


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
        rungs = ladder.climb(record, outcomes)
        if not rungs:
            return ["nothing could be put on top of another"]
        last = rungs[-1]
        names = ", ".join(each.added for each in rungs)
        return [f"together ({names}): {spread(last.together)}x, {last.outcome.verdict}"]
    if bundles := plans.find_plans(outcomes):
        return [each.sentence for each in bundles if each.sentence]
    whole = experiment_effects.find(outcomes, "all_together", "training step")
    if whole is None:
        is_expected = record.workload.name == FIRST_REPORT
        return ["all changes together were not measured"] if is_expected else []
    if whole.timed is None:
        return [f"all changes together: {whole.verdict}"]
    return [f"all changes together: {spread(whole.timed.speedup)}x, {whole.verdict}"]


def _speed(outcome: Outcome) -> float:
    return 0.0 if outcome.timed is None else outcome.timed.speedup.center


def _maps(record: OptimizeRecord) -> list[str]:
    if not record.maps:
        return ["No launch map was recorded."]
    blocks = []
    for each in record.maps:
        blocks += [f"### {escape(each.form)}", *launch_map(each)]
    return blocks


def _flags(record: OptimizeRecord, outcomes: Sequence[Outcome], run: RunRecord) -> list[str]:
    lines = [
        f"- **{escape(each.name)}, {escape(each.comparison.scope)}: {each.verdict}.** "
        f"{prose(each.reason)}"
        for each in outcomes
        if each.verdict in ("FAILED", "INVALID", "SKIPPED")
    ]
    missing = _unreached(record)
    if missing or not record.complete:
        left = ", ".join(missing) or "none, it ended after the last experiment"
        lines.append(f"- **The run was not finished.** Not reached: {escape(left)}.")
    found = flags.find_flags(run.header.machine, flags.placed(run.stages))
    lines += [_line(each) for each in found]
    return ["\n".join(lines) or "Nothing disturbed the run."]


def _line(finding: Finding, *, verdict: bool = False) -> str:
    mark = "" if finding.severity == "info" else f" ({finding.severity})"
    if verdict:
        mark = f" ({finding.verdict})"
    advice = f" *{escape(finding.advice)}*" if finding.advice else ""
    return f"- **{prose(finding.sentence)}**{mark} {prose(finding.evidence)}.{advice}"


def _evidence(outcomes: Sequence[Outcome]) -> list[str]:
    blocks = [*experiment_tables.evidence(outcomes), *experiment_tables.facts(outcomes)]
    return blocks or ["Nothing was timed."]


def _method(record: OptimizeRecord, outcomes: Sequence[Outcome]) -> list[str]:
    job = record.workload
    timed = [each for each in outcomes if each.timed is not None]
    blocks = [each.timed.blocks for each in timed if each.timed is not None]
    count = "none" if not blocks else f"{min(blocks)} to {max(blocks)}"
    rows = [
        ["workload", f"{job.name}, size {job.size}, {job.parameters} parameters"],
        ["settings", ", ".join(f"{name} {value}" for name, value in job.settings.items())],
        ["effort", record.header.effort],
        ["experiments", f"{len(outcomes)}, of them timed {len(timed)}"],
        ["blocks per experiment", count],
        ["seed", str(record.header.seed)],
        [
            "method, schema, tool",
            record.header.versions,
        ],
        ["measured", record.header.created],
        ["source", record.header.source],
        ["planned", ", ".join(record.planned)],
    ]
    align: tuple[Align, ...] = ("left", "left")
    is_pass = any(each.comparison.scope == plans.PASS for each in outcomes)
    is_short = record.header.effort == "quick" and (is_pass or _has_ladder(record))
    most = MOST_BLOCKS_OF_QUICK_LADDER if is_short else MOST_BLOCKS
    return [table(["run", ""], rows, align), _METHOD.format(blocks=most)]


def _has_ladder(record: OptimizeRecord) -> bool:
    """Whether one was to be climbed: with nothing to put on top, it has no rungs."""
    return bool(record.rungs) or record.workload.name == series_causes.WORKLOAD


def _unreached(record: OptimizeRecord) -> list[str]:
    reached = {each.key for each in record.comparisons}
    return [key for key in record.planned if key not in reached]
