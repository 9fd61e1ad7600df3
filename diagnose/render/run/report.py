"""What does the report say, and in which order? A pure function from a record to Markdown.

The answer comes first, then what it rests on, then everything needed to doubt it. No date but
the record's own and no path, so that the same record renders to the same bytes everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence

from diagnose.analyze import derive
from diagnose.analyze.findings import Finding
from diagnose.analyze.run.rules import answer, judge
from diagnose.records.run import RunRecord
from diagnose.render import gpu_tables, machine_tables
from diagnose.render.markdown import escape, prose
from diagnose.render.run import tables

_GROUPS = (
    ("cause", "Causes", "No cause was found."),
    ("excluded", "Excluded", "Nothing could be excluded."),
    ("cannot tell", "Cannot tell", ""),
)
_FIGURES = {
    "stages.svg": "Milliseconds per step, stage by stage",
    "loader.svg": "Milliseconds per batch by number of loader workers",
    "power.svg": "GPU power over the run",
}
_GLOSSARY = (
    "**Interval** `centre [low, high]`: the Hodges-Lehmann estimate of the slots with its exact "
    "95 % interval. It covers the scatter within this run, not another machine or another day.",
    "**Reference**: an earlier step that was measured again in the same blocks, in random order. "
    "Costs are differences within blocks, so slow drift of the machine cancels.",
    "**% of attainable**: FLOP/s of the step over FLOP/s of a large matrix product of the same "
    "precision, both measured here. It is not a share of the data sheet.",
    "**NVML utilisation** is the share of time in which any kernel ran. One tiny kernel after "
    "another reads 100 %: it is not efficiency.",
    "**Power share (W ÷ limit)** is average power over the power limit; it drops when the GPU "
    "waits.",
    "**NVML power** is a sensor, not a meter: absolute values are off by some percent per card, "
    "ratios on one card are good.",
    "**p90, p99**: a bound that holds for that share of the steps with 99 % confidence.",
)


def render(record: RunRecord) -> str:
    findings = judge(record)
    blocks = [
        f"# {escape(record.header.label)}: {escape(record.workload.name)} on "
        f"{escape(record.header.machine.device_name)}",
        *machine_tables.no_result(record),
        f"**{prose(answer(record, findings))}**",
        "## Stages",
        *tables.stages(record),
        "## What each part costs",
        *tables.ledger(record),
        *_findings(findings),
        *_flags(findings),
        *gpu_tables.gpu_use(record),
        "## What this device attains",
        *tables.ceilings(record),
        "## DataLoader",
        *tables.loader(record),
        "## Slow steps",
        *tables.percentiles(record),
        "## Figures",
        *_figures(record),
        "## Data",
        *machine_tables.data(record),
        "## Machine",
        *machine_tables.machine(record),
        "## How to read this report",
        "\n".join(f"- {line}" for line in _GLOSSARY),
        "## How it was measured",
        *machine_tables.method(record),
    ]
    return "\n\n".join(blocks) + "\n"


def _findings(findings: Sequence[Finding]) -> list[str]:
    blocks = []
    for verdict, title, nothing in _GROUPS:
        lines = [_line(each) for each in findings if each.verdict == verdict]
        if lines or nothing:
            blocks += [f"## {title}", "\n".join(lines) or nothing]
    return blocks


def _flags(findings: Sequence[Finding]) -> list[str]:
    lines = [_line(each) for each in findings if each.verdict == "flag"]
    return ["## Flags", "\n".join(lines) or "Nothing disturbed the run."]


def _line(finding: Finding) -> str:
    mark = "" if finding.severity == "info" else f" ({finding.severity})"
    evidence = " Evidence: " + prose(_stop(finding.evidence)) if finding.evidence else ""
    advice = f" *{escape(finding.advice)}*" if finding.advice else ""
    return f"- **{prose(finding.sentence)}**{mark}{evidence}{advice}"


def _stop(text: str) -> str:
    return text if text.endswith(".") else f"{text}."


def _figures(record: RunRecord) -> list[str]:
    blocks = [f"![{_FIGURES[name]}]({name})" for name in derive.figure_names(record)]
    if "power.svg" not in derive.figure_names(record):
        blocks.append(f"There is no power figure: {prose(derive.no_power_reason(record))}.")
    return blocks
