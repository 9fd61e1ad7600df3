"""What does the report on scaling say? A pure function from a record to Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from diagnose.analyze.findings import Finding
from diagnose.analyze.optimize.experiment import Outcome
from diagnose.analyze.scaling.cadence import cadence_table
from diagnose.analyze.scaling.findings import is_slower_than_one, judge_scaling, many_times
from diagnose.analyze.scaling.ledger import Ledger, build_ledger, find_obstacle, rank_times
from diagnose.analyze.scaling.options import as_experiments, judge_options, option_table
from diagnose.analyze.scaling.recommend import Recommendation, recommend
from diagnose.analyze.units import milliseconds, percent, percent_interval, scaled
from diagnose.records.experiments import OptimizeRecord
from diagnose.records.header import Reading
from diagnose.records.ranks import ScalingRecord
from diagnose.records.run import RunRecord, StageResult
from diagnose.render import machine_tables
from diagnose.render.markdown import Align, Footnotes, Markup, escape, prose, table
from diagnose.render.optimize import experiments as experiment_tables

FIGURE_NAME = "scaling.svg"
# The only job that the recommended command line starts.
SCRIPTED_WORKLOAD = "dgca"

_METHOD = (
    "Every series of the ledger ran in the same blocks, in a random order that all ranks agreed "
    "on: rank 0 alone while the others wait, and all ranks at once; with real input and with one "
    "batch kept on the device; without any exchange of gradients (forward and backward inside "
    "no_sync), with it, and with the optimiser. A step together takes as long as its slowest "
    "rank. Rows of the ledger are Hodges-Lehmann estimates of differences within blocks, with "
    "their exact 95 % interval. No sample is discarded."
)


def render_scaling(record: ScalingRecord) -> str:
    outcomes = judge_options(record)
    run = as_run(as_experiments(record))
    blocks = [
        f"# {escape(record.header.label)}: how {escape(record.workload.name)} scales over "
        f"{len(record.ranks)} ranks on {escape(record.header.machine.device_name)}",
        *machine_tables.no_result(run),
        f"**{prose(answer(record))}**",
        "## Where scaling is lost",
        *_ledger(record),
        "## Findings",
        *_findings(judge_scaling(record)),
        "## Ranks",
        *_ranks(record),
        "## DDP options",
        *option_table(outcomes),
        "## Evaluation and saving",
        *cadence_table(record),
        "## Recommended command",
        *_recommended(record, recommend(record, outcomes)),
        "## Behind the verdicts",
        *_evidence(outcomes),
        "## Data",
        *machine_tables.data(run),
        "## Machine",
        *machine_tables.machine(run),
        "## How it was measured",
        *_method(record),
    ]
    return "\n\n".join(blocks) + "\n"


def answer(record: ScalingRecord) -> str:
    """How far it scales and what takes most away, in one sentence."""
    ledger = build_ledger(record)
    ended = f" {_ending(record)}" if _ending(record) else ""
    if ledger is None:
        return f"Scaling could not be measured: {find_obstacle(record)}.{ended}"
    text = (
        f"{ledger.ranks} ranks reach {percent(ledger.efficiency.center)} of "
        f"{many_times(ledger.ranks)}"
    )
    if is_slower_than_one(ledger):
        text += ", less than one alone"
    largest = ledger.causes[0]
    if largest.cost.seconds.low is None or largest.cost.seconds.low <= 0:
        return f"{text}; no single loss is proven.{ended}"
    return (
        f"{text}; the largest loss is {largest.name}, {milliseconds(largest.cost.seconds)} ms of "
        f"a step of {milliseconds(ledger.together)} ms.{ended}"
    )


def figure_names(record: ScalingRecord) -> tuple[str, ...]:
    """The figures that this record supports."""
    return () if find_obstacle(record) else (FIGURE_NAME,)


def _ending(record: ScalingRecord) -> str:
    culprit = record.culprit
    if culprit is not None:
        return f"Rank {culprit.rank} {culprit.reason} during {culprit.where}."
    return "" if record.complete else "The run was not finished."


def _ledger(record: ScalingRecord) -> list[str]:
    ledger = build_ledger(record)
    if ledger is None:
        return [f"There is no ledger: {prose(find_obstacle(record))}."]
    rows = [["one rank alone", milliseconds(ledger.alone), " "]]
    rows += [
        [f"+ {loss.name}", milliseconds(loss.cost.seconds), percent_interval(loss.cost.share)]
        for loss in ledger.losses
    ]
    rows += [
        [f"= {ledger.ranks} ranks together", milliseconds(ledger.together), "100 %"],
        ["all losses", *_cost(ledger)],
    ]
    headers = ["", Markup("ms per step [95 % interval]"), "share of the step together"]
    return [
        table(headers, rows),
        prose(_sum_check(ledger)),
        prose(_transfer(ledger)),
        f"![The ledger of one step]({FIGURE_NAME})",
    ]


def _cost(ledger: Ledger) -> tuple[str, str]:
    cost = ledger.total.cost
    return milliseconds(cost.seconds), percent_interval(cost.share)


def _sum_check(ledger: Ledger) -> str:
    printed = sum(loss.cost.seconds.center for loss in ledger.losses)
    return (
        f"The rows add up in each of {ledger.total.cost.blocks} blocks to within "
        f"{1e9 * ledger.imbalance:.0f} ns; the last of them is what the measured ones leave. Each "
        "row is a median of paired differences, and medians need not add up: the rows sum to "
        f"{1e3 * printed:.2f} ms, all losses are {1e3 * ledger.total.cost.seconds.center:.2f} ms."
    )


def _transfer(ledger: Ledger) -> str:
    if ledger.transfer.value is None:
        return f"Communication is not split: {ledger.transfer.reason}."
    exposed = ledger.communication.cost.seconds.center
    return (
        f"By the measured curve the buckets take {1e3 * ledger.transfer.value:.2f} ms one after "
        f"the other; {1e3 * max(0.0, min(exposed, ledger.transfer.value)):.2f} ms of it are "
        "exposed, the backward pass hides the rest. What is exposed beyond the curve is the "
        "bandwidth shortfall."
    )


def _findings(findings: Sequence[Finding]) -> list[str]:
    lines = []
    for each in findings:
        mark = each.verdict if each.severity == "info" else f"{each.verdict}, {each.severity}"
        advice = f" *{escape(each.advice)}*" if each.advice else ""
        lines.append(f"- **{prose(each.sentence)}** ({mark}) {prose(each.evidence)}.{advice}")
    return ["\n".join(lines) or "Nothing can be concluded."]


def _ranks(record: ScalingRecord) -> list[str]:
    notes = Footnotes()
    times = {each.rank.rank: each for each in rank_times(record)}
    why = find_obstacle(record) or "not timed"
    rows = []
    for rank in record.ranks:
        own = times.get(rank.rank)
        numa = _whole(rank.numa_node, notes)
        place = [str(rank.rank), str(rank.node), rank.device_name, numa, str(rank.threads)]
        if own is None:
            rows.append([*place, *([notes.missing(why)] * 5)])
            continue
        spent = [milliseconds(own.local), milliseconds(own.full)]
        late = [percent_interval(own.excess), milliseconds(own.waits)]
        rows.append([*place, *spent, *late, _whole(own.watts, notes)])
    headers = [
        *("rank", "host", "device", "NUMA node", "threads"),
        *("own work ms", "full step ms", "over the mean", "waits ms", "W"),
    ]
    return [table(headers, rows), *(["\n".join(notes.lines())] if notes.lines() else [])]


def _whole(reading: Reading, notes: Footnotes) -> str:
    return notes.missing(reading.reason) if reading.value is None else f"{reading.value:.0f}"


def _recommended(record: ScalingRecord, found: Recommendation) -> list[str]:
    if record.workload.name == SCRIPTED_WORKLOAD:
        blocks = [f"```\n{found.command}\n```"]
        rows = [[found.launcher, found.launcher_row]]
        rows += [[flag.text, flag.row] for flag in found.flags]
        headers = ["flag", "row that justifies it"]
    else:
        blocks = ["This job has its own script; these are the changes that are proven here."]
        rows = [[found.launcher, found.launcher_row]]
        rows += [[flag.code, flag.row] for flag in found.flags]
        headers = ["change", "row that justifies it"]
    align: tuple[Align, ...] = ("left", "left")
    blocks.append(table(headers, rows, align))
    if found.remarks:
        blocks.append("\n".join(f"- {prose(remark)}" for remark in found.remarks))
    return blocks


def _evidence(outcomes: Sequence[Outcome]) -> list[str]:
    blocks = [*experiment_tables.evidence(outcomes), *experiment_tables.facts(outcomes)]
    return blocks or ["No option was timed."]


def _method(record: ScalingRecord) -> list[str]:
    job = record.workload
    blocks = [len(row) for series in record.series for row in series.slot_seconds if row]
    buckets = ", ".join(scaled(nbytes, "B") for nbytes in record.bucket_bytes)
    rows = [
        ["workload", f"{job.name}, size {job.size}, {job.parameters} parameters"],
        ["settings", ", ".join(f"{name} {value}" for name, value in job.settings.items())],
        ["ranks, hosts, backend", f"{len(record.ranks)}, {record.nodes}, {record.backend}"],
        ["samples per step and rank", str(record.samples_per_step)],
        ["gradients", scaled(record.gradient_bytes, "B")],
        ["buckets, first exchanged first", buckets or "not recorded"],
        ["blocks of the ledger", str(min(blocks, default=0))],
        ["run settings", ", ".join(f"{key} {value}" for key, value in record.settings.items())],
        ["effort", record.header.effort],
        ["seed", str(record.header.seed)],
        [
            "method, schema, tool",
            record.header.versions,
        ],
        ["measured", record.header.created],
        ["source", record.header.source],
    ]
    align: tuple[Align, ...] = ("left", "left")
    return [table(["run", ""], rows, align), _METHOD]


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
    return RunRecord(
        header=record.header,
        workload=record.workload,
        planned=record.planned,
        stages=tuple(stages),
        complete=record.complete,
    )
