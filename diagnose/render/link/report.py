"""What does the report on the interconnect say? A pure function from a record to text."""

from __future__ import annotations

from collections.abc import Sequence

from diagnose.analyze import flags
from diagnose.analyze.findings import Finding
from diagnose.analyze.link.bandwidth import CORRUPT, SizeSpeed, measure_sizes
from diagnose.analyze.link.expected import expect
from diagnose.analyze.link.verdict import gradient_cost, judge, measure_rate
from diagnose.analyze.units import number, percent, scaled
from diagnose.records.header import WorkloadFacts
from diagnose.records.ranks import BandwidthRecord
from diagnose.records.run import RunRecord
from diagnose.render import machine_tables
from diagnose.render.link import tables as bandwidth_tables
from diagnose.render.markdown import Align, clean, escape, prose, table
from diagnose.render.retell import retell

FIGURE_NAME = "bandwidth.svg"

_GLOSSARY = (
    "**One at a time** (single): all ranks wait for each other, then time one all-reduce until "
    "the device is done. **Back to back** (window): several all-reduces in a row, then one wait; "
    "the time is per all-reduce.",
    "**Time**: of each repetition the slowest rank's, then the median; the interval is the exact "
    "95 % interval of a median.",
    "**algbw**: bytes of the tensor ÷ time. **busbw**: algbw · 2(n − 1) ÷ n for n ranks, which is "
    "what each link of a ring carries one way and what a data sheet can be compared with.",
    "**2·bytes/time** is how the field report counts; for two ranks it is twice the busbw.",
    "**GB** is 10⁹ bytes.",
    f"**{CORRUPT}**: some element of the sum was wrong, so there is no bandwidth.",
)
_METHOD = (
    "Every size is warmed up, filled with whole numbers whose sum is exact, checked element by "
    "element on every rank, timed, and checked again. Nothing is discarded."
)
_TEXT: tuple[Align, ...] = ("left", "left")


def render_bandwidth(record: BandwidthRecord) -> str:
    """The whole file."""
    sizes, findings, run = measure_sizes(record), judge(record), _as_run(record)
    blocks = [
        f"# {escape(record.header.label)}: all-reduce of {escape(_who(record))}",
        *machine_tables.no_result(run),
        f"**{prose(answer(record))}**",
        "## Findings",
        *_findings([*findings, *flags.find_flags(run.header.machine)]),
        "## One all-reduce at a time",
        *bandwidth_tables.one_mode(sizes, lambda each: each.single),
        "## All-reduces back to back",
        *bandwidth_tables.one_mode(sizes, lambda each: each.window),
        bandwidth_tables.sums(sizes),
        *_figure(record),
        "## Latency and bandwidth",
        *bandwidth_tables.line(sizes),
        prose(bandwidth_tables.say_expected(expect(record))),
        "## Trials",
        *bandwidth_tables.trials(record),
        "## Ranks",
        *bandwidth_tables.ranks(record, sizes),
        "## Surroundings",
        *bandwidth_tables.surroundings(record),
        "## Machine of rank 0",
        *machine_tables.machine(run),
        "## How to read this report",
        "\n".join(f"- {line}" for line in _GLOSSARY),
        "## How it was measured",
        *_method(record),
    ]
    return "\n\n".join(blocks) + "\n"


def bandwidth_section(record: BandwidthRecord) -> str:
    """The same in short, for the staged report."""
    sizes = measure_sizes(record)
    blocks = [
        "## Interconnect",
        f"**{prose(answer(record))}**",
        *bandwidth_tables.overview(sizes),
        bandwidth_tables.sums(sizes),
        prose(bandwidth_tables.say_expected(expect(record))),
        *_findings(judge(record)),
        *_figure(record),
    ]
    return "\n\n".join(blocks)


def print_table(record: BandwidthRecord) -> str:
    """Plain text for a terminal: the answer, the sizes, and what to do."""
    sizes = measure_sizes(record)
    rows = [list(bandwidth_tables.SHORT_HEADERS), *bandwidth_tables.short_rows(sizes)]
    rows = [[clean(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(
            cell.ljust(width) if column < 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    findings = [
        clean(f"{each.sentence} {each.advice}") for each in judge(record) if each.severity != "info"
    ]
    notes = [clean(bandwidth_tables.say_expected(expect(record))), *findings]
    return "\n".join([clean(answer(record)), "", *lines, "", *notes])


def answer(record: BandwidthRecord) -> str:
    """What the link gives, what that costs the model, and what to look at first."""
    findings = judge(record)
    causes = [each for each in findings if each.verdict == "cause" and each.kind != "slow_link"]
    causes.sort(key=lambda each: each.kind != "corrupt")  # a wrong sum is worse than any delay
    sentences = [
        f"{'; '.join(_what_it_gives(record, measure_sizes(record), findings))}.",
        *(each.sentence for each in causes[:1]),
        *(each.sentence for each in findings if each.kind in ("culprit", "unfinished")),
    ]
    return " ".join(sentences)


def _what_it_gives(
    record: BandwidthRecord, sizes: Sequence[SizeSpeed], findings: Sequence[Finding]
) -> list[str]:
    expectation = expect(record)
    where = "on one machine" if record.nodes < 2 else f"on {record.nodes} hosts"
    who = f"{_who(record)} {where}"
    timed = [each.best for each in sizes if each.best is not None]
    if not timed:
        reason = next((each.reason for each in sizes if each.reason), "no size was reached")
        return [f"No all-reduce of {who} could be timed: {reason.rstrip('.')}"]
    largest = max(speed.nbytes for speed in timed)
    # Where no size is large enough to be judged, the largest says the most.
    from_bytes = min(expectation.judged_from_bytes, largest)
    rate = measure_rate(sizes, from_bytes)
    if rate is None:
        return [f"One rank alone sends nothing; {gradient_cost(sizes)}"]
    text = (
        f"{who} exchange {number(rate.bytes_per_second / 1e9, 3)} GB/s (busbw from "
        f"{scaled(from_bytes, 'B')})"
    )
    if expectation.bytes_per_second is not None and from_bytes == expectation.judged_from_bytes:
        share = rate.bytes_per_second / expectation.bytes_per_second
        text += (
            f", {percent(share)} of the {number(expectation.bytes_per_second / 1e9, 3)} GB/s "
            f"expected of {expectation.link}"
        )
    slow = any(each.kind == "slow_link" for each in findings)
    return [text + (": a slow link" if slow else ""), gradient_cost(sizes)]


def _who(record: BandwidthRecord) -> str:
    plural = "" if len(record.ranks) == 1 else "s"
    return f"{len(record.ranks)} rank{plural} over {record.backend}"


def _findings(findings: Sequence[Finding]) -> list[str]:
    return ["\n".join(_line(each) for each in findings) or "Nothing was found."]


def _line(finding: Finding) -> str:
    mark = "" if finding.severity == "info" else f" ({finding.severity})"
    evidence = finding.evidence.rstrip(".")
    told = f" Evidence: {prose(evidence)}." if evidence else ""
    advice = f" *{escape(finding.advice)}*" if finding.advice else ""
    return f"- **{prose(finding.sentence)}**{mark}{told}{advice}"


def figure_names(record: BandwidthRecord) -> tuple[str, ...]:
    """One rank alone has no bus bandwidth that could be drawn."""
    speeds = [each.best for each in measure_sizes(record)]
    return (FIGURE_NAME,) if any(each is not None and each.bus_rate for each in speeds) else ()


def _figure(record: BandwidthRecord) -> list[str]:
    text = "Bus bandwidth by size, with the fitted and the expected line"
    return [f"![{text}]({name})" for name in figure_names(record)]


def _method(record: BandwidthRecord) -> list[str]:
    done = sum(size.status == "done" for size in record.sizes)
    rows = [
        ["backend", record.backend],
        ["ranks, hosts", f"{len(record.ranks)}, {record.nodes}"],
        ["sizes", f"{len(record.sizes)}, of them timed {done}"],
        ["empty pass through the timing loop", f"{number(1e6 * record.overhead_seconds, 3)} µs"],
        ["effort", record.header.effort],
        [
            "method, schema, tool",
            record.header.versions,
        ],
        ["measured", record.header.created],
        ["source", record.header.source],
    ]
    return [table(["run", ""], rows, _TEXT), _METHOD]


def _as_run(record: BandwidthRecord) -> RunRecord:
    """The same machine as a run, so that it is shown and its disturbances are found alike."""
    workload = WorkloadFacts("all-reduce", record.backend, {}, 0)
    return retell(record, RunRecord, seed=0, workload=workload, planned=())
