"""What does the report on the accuracy say? A pure function from a record to Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from diagnose.analyze.accuracy import LINES_OFF, NO_ANSWER, Goal, Judged, confusion, goals, judge
from diagnose.analyze.units import milliseconds, number, percent
from diagnose.records.accuracy import AccuracyRecord
from diagnose.records.header import WorkloadFacts
from diagnose.records.run import RunRecord
from diagnose.render import machine_tables
from diagnose.render.markdown import Align, Footnotes, Markup, escape, prose, table
from diagnose.render.retell import retell

FIGURE_NAME = "accuracy.svg"
_METHOD = (
    "Each planted script is diagnosed unmodified, as a user would. Its truth is measured apart "
    "from the tool: the script and its repaired twin run in two processes that take turns, block "
    "after block in random order, and the real gain is the Hodges-Lehmann estimate of the paired "
    "differences of their mean step times. The first steps of every block are not timed. The "
    f"named line is right within {LINES_OFF} lines of the one to change, or of the one where its "
    "time passes. A gain is promised minutes before the twins run, and a shared machine changes "
    "its speed meanwhile: what is compared is the promised share of a step, in milliseconds of "
    "the slow twin's step. What is said of a script with two causes is the sum of both. A "
    "true cause that was not found promises no gain: its error is 100 %. A script whose twin "
    "gains next to nothing on this machine is listed and not counted."
)
_ALIGN: tuple[Align, ...] = (
    "left",
    "left",
    "left",
    "left",
    "right",
    "right",
    "right",
    "right",
    "left",
)


def render_accuracy(record: AccuracyRecord) -> str:
    cases = judge(record)
    run = _as_run(record)
    blocks = [
        f"# {escape(record.header.label)}: how often a diagnosis is right",
        *machine_tables.no_result(run),
        f"**{prose(answer(record))}**",
        _goals_table(goals(cases)),
        *_raw_error(cases),
        *([f"![Promised against real gains]({FIGURE_NAME})"] * bool(figure_names(record))),
        *_unseen(cases),
        "## Every script",
        *_cases_table(cases),
        "## What was taken for what",
        *_confusion_table(cases),
        "## What it costs to ask",
        *_cost_table(cases),
        "## Machine",
        *machine_tables.machine(run),
        "## How it was measured",
        *_method(record),
    ]
    return "\n\n".join(blocks) + "\n"


def answer(record: AccuracyRecord) -> str:
    """The four figures in one sentence."""
    cause, line, error, alarms = goals(judge(record))
    if not record.cases:
        return "No script was diagnosed."
    clauses = [f"the top cause is right in {cause.right} of {cause.count} scripts"]
    if line.count:
        clauses.append(f"the line in {line.right} of {line.count}")
    if error.value is not None:
        clauses.append(f"the promised gain is off by {percent(error.value)} at the median")
    if alarms.count:
        clauses.append(f"{alarms.right} of {alarms.count} healthy scripts raise a false alarm")
    text = "; ".join(clauses)
    ending = "" if record.complete else " The run was not finished."
    return f"{text[0].upper()}{text[1:]}.{ending}"


def figure_names(record: AccuracyRecord) -> tuple[str, ...]:
    return (FIGURE_NAME,) if compared(record) else ()


def compared(record: AccuracyRecord) -> list[Judged]:
    """The cases with a promised and a real gain, neither of which is nothing."""
    return [
        each
        for each in judge(record)
        if each.gain_error is not None and each.said_seconds > 0 and not each.not_planted
    ]


def _raw_error(cases: Sequence[Judged]) -> list[str]:
    errors = [
        abs(each.said_seconds / each.real.center - 1)
        for each in cases
        if each.gain_error is not None and each.real is not None and not each.not_planted
    ]
    if not errors:
        return []
    return [
        "The error is that of shares of a step. In milliseconds, which were measured in different "
        f"minutes, it is {percent(statistics.median(errors))} at the median."
    ]


def _unseen(cases: Sequence[Judged]) -> list[str]:
    """Rules can be fitted to scripts that are known; these figures cannot."""
    unseen = [each for each in cases if each.result.unseen]
    if not unseen:
        return []
    return [
        "## Scripts that no rule was made for",
        "Written by the catalogue of causes alone, without knowledge of how the tool decides; "
        "they are also among the scripts above.",
        _goals_table(goals(unseen)),
    ]


def _goals_table(figures: Sequence[Goal]) -> str:
    rows = []
    for each in figures:
        verdict = {True: "met", False: "missed", None: "no case"}[each.met]
        counts = f"{each.right} of {each.count}" if each.right is not None else f"{each.count}"
        value = "–" if each.value is None else percent(each.value)
        rows.append([each.name, each.wanted, value, counts, verdict])
    align: tuple[Align, ...] = ("left", "left", "right", "right", "left")
    return table(["figure", "goal", "reached", "scripts", "verdict"], rows, align)


def _cases_table(cases: Sequence[Judged]) -> list[str]:
    notes = Footnotes()
    headers = [
        "script",
        "planted",
        "said",
        "at",
        Markup("real gain ms [95 % interval]"),
        "promised ms",
        "at the twins' pace",
        "error",
        "verdict",
    ]
    blocks = [table(headers, [_case_row(each, notes) for each in cases], _ALIGN)]
    return [*blocks, "\n".join(notes.lines())] if notes.lines() else blocks


def _case_row(each: Judged, notes: Footnotes) -> list[str]:
    result = each.result
    findings = result.answer.findings if result.answer else ()
    said = ", ".join(found.cause for found in findings)
    # A healthy script has no line to name.
    where = f"{findings[0].file}:{findings[0].line}" if findings and not each.is_healthy else ""
    missing = notes.missing(result.answer_reason) if result.answer is None else ""
    return [
        result.name,
        ", ".join(_place(culprit.cause, culprit.file, culprit.lines) for culprit in result.culprits)
        or "nothing",
        missing or said or NO_ANSWER,
        where,
        notes.missing(result.twins_reason) if each.real is None else milliseconds(each.real),
        "" if each.is_healthy else number(each.said_seconds * 1e3, 3),
        "" if each.is_healthy or each.real is None else number(each.paced_seconds * 1e3, 3),
        "" if each.gain_error is None else percent(each.gain_error),
        notes.doubt("not counted", each.not_planted) if each.not_planted else _verdict(each),
    ]


def _place(cause: str, file: str, lines: Sequence[int]) -> str:
    return f"{cause} at {file}:{'/'.join(map(str, lines))}"


def _verdict(each: Judged) -> str:
    if each.false_alarm:
        return "false alarm"
    if not each.cause_right:
        return "wrong cause"
    if each.line_right is False:
        return "wrong line"
    missed = len(each.result.culprits) - each.found
    return "right" if missed == 0 else "second cause missed"


def _confusion_table(cases: Sequence[Judged]) -> list[str]:
    counts = confusion(cases)
    if not counts:
        return ["No script was diagnosed."]
    true_causes = list(dict.fromkeys(each.true_cause for each in cases))
    said = sorted({said for _, said in counts}, key=lambda cause: _place_of(cause, true_causes))
    rows = [
        [cause, *(str(counts.get((cause, column), "")) for column in said)] for cause in true_causes
    ]
    return ["Rows are what was planted, columns what was said first.", table(["", *said], rows)]


def _place_of(cause: str, order: Sequence[str]) -> tuple[int, str]:
    return (order.index(cause) if cause in order else len(order), cause)


def _cost_table(cases: Sequence[Judged]) -> list[str]:
    answers = [each.result.answer for each in cases if each.result.answer is not None]
    if not answers:
        return ["No script was diagnosed."]
    overheads = [a.overhead_share.value for a in answers if a.overhead_share.value is not None]
    seconds = [each.result.seconds for each in cases if each.result.answer is not None]
    steps = [float(a.steps) for a in answers]
    rows = [
        ["seconds from start to answer", *_median_and_most(seconds)],
        ["steps of the script", *_median_and_most(steps)],
    ]
    if overheads:
        middle, most = statistics.median(overheads), max(overheads)
        rows.append(["overhead in plain steps", f"{100 * middle:.3f} %", f"{100 * most:.3f} %"])
    return [table(["", "median", "most"], rows)]


def _median_and_most(values: Sequence[float]) -> tuple[str, str]:
    return number(statistics.median(values), 3), number(max(values), 3)


def _method(record: AccuracyRecord) -> list[str]:
    blocks = [len(each.twins.slow_seconds) for each in record.cases if each.twins is not None]
    rows = [
        ["tool", record.tool],
        ["scripts", f"{len(record.cases)} of {len(record.planned)}"],
        ["blocks of each twin", str(max(blocks)) if blocks else "none"],
        [
            "method, schema, version",
            record.header.versions,
        ],
        ["measured", record.header.created],
        ["source", record.header.source],
    ]
    align: tuple[Align, ...] = ("left", "left")
    return [table(["run", ""], rows, align), _METHOD]


def _as_run(record: AccuracyRecord) -> RunRecord:
    """The same machine as a run, so that it is shown alike."""
    workload = WorkloadFacts("planted scripts", "", {}, 0)
    return retell(record, RunRecord, seed=0, workload=workload, planned=record.planned)
