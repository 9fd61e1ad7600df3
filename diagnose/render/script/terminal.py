"""What does a person read in the terminal? The causes of a script in columns, then the rest."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from diagnose.analyze.script.claims import SMALLEST_SHARE
from diagnose.analyze.script.words import name_line
from diagnose.analyze.units import number, percent
from diagnose.records.diagnosis import Diagnosis, Option, ScriptFinding

WIDTH = 100
INDENT = " " * 7
# Of a gain: where less of it is left after the findings above, that is told.
OVERLAPS = 0.95

Style = Literal["title", "cause", "code", "fix", "faint", ""]


class Line(NamedTuple):
    """One line, and what it is; a terminal may show that in color."""

    text: str
    style: Style = ""


def layout(diagnosis: Diagnosis) -> list[Line]:
    lines = layout_causes(diagnosis)
    if diagnosis.findings:
        for each in undecided_lines(diagnosis):
            lines += _wrapped(f"Undecided: {each}", " ", "faint")
    if "share" in diagnosis.overhead:
        share = percent(diagnosis.overhead["share"])
        lines.append(Line(f" Measuring overhead: {share} of an unmodified step.", "faint"))
    for each in unknown_lines(diagnosis):
        lines += _wrapped(f"Unknown: {each}", " ", "faint")
    for each in diagnosis.notes:
        lines += _wrapped(f"Note: {each}", " ")
    return lines


def layout_causes(diagnosis: Diagnosis) -> list[Line]:
    """The answer, each cause with its fix, the sum, and what it is not."""
    lines = [*_title(diagnosis), Line("")]
    open_causes = [each for each in diagnosis.cannot_tell if each.cause != "compute"]
    lines += _causes(diagnosis.findings, "healthy" if not open_causes else "undecided")
    lines += _sums(diagnosis)
    for option in diagnosis.options:
        told = f"not tried: {option.command} ({option.why})"
        if option.tried is not None:
            told = f"tried beside the script: {option.tried.sentence}"
        lines += _wrapped(f"Changes the numbers, {told}", " ")
    if diagnosis.slow_steps:
        lines += _wrapped(f"Slow steps: {diagnosis.slow_steps}.", " ")
    if diagnosis.phases:
        parts = [f"{name} {number(ms, 3)}" for name, ms in diagnosis.phases.items()]
        lines += _wrapped(f"Phases in ms per step: {', '.join(parts)}", " ", "faint")
    for each in excluded_lines(diagnosis):
        lines += _wrapped(f"Excluded: {each}", " ", "faint")
    return lines


def _title(diagnosis: Diagnosis) -> list[Line]:
    record, step = diagnosis.record, diagnosis.step_ms
    if record is None or step is None or not diagnosis.findings:
        lines = _wrapped(f"diagnose: {diagnosis.sentence}", "", "title")
        known = record is not None and step is not None
        return [*lines, Line(f"  {_step(step)}")] if known else lines
    ran = f"{record.steps} steps in {number(record.run_seconds, 3)} s"
    first = f"diagnose: {record.script} · {_step(step)} · {ran}"
    lines = [Line(first, "title")]
    speed = diagnosis.sentence.partition("(")[2].partition(")")[0]
    if "/s" in speed or "%" in speed:
        lines += _wrapped(speed, " " * len("diagnose: "))
    return lines


def _step(step: object) -> str:
    mean, low, high = (getattr(step, name) for name in ("mean", "low", "high"))
    interval = f"[{number(low, 3)}, {number(high, 3)}]"
    if low <= mean <= high:
        return f"{number(mean, 3)} ms per step {interval}"
    tail = number(getattr(step, "tail", 0.0) or high, 3)
    return f"{number(mean, 3)} ms per step on average, usually {interval}, 19 of 20 below {tail}"


def _causes(findings: Sequence[ScriptFinding], no_cause: str) -> list[Line]:
    rows = [(each, _row(each, no_cause)) for each in findings]
    widths = [max((len(row[place]) for _, row in rows), default=0) for place in range(4)]
    lines: list[Line] = []
    for finding, row in rows:
        cells = [
            row[0].rjust(widths[0]),
            *(c.ljust(w) for c, w in zip(row[1:], widths[1:], strict=True)),
        ]
        head = f" {'  '.join(cells)}".rstrip()
        if finding.cause == "compute":
            told = _sentence(finding.evidence)
            if no_cause != "healthy":
                told = told.replace("No cause would", "No cause that could be decided would", 1)
            lines += [Line(head, "cause"), *_wrapped(told)]
            continue
        lines.append(Line(f"{head}  {how(finding)}", "cause"))
        if finding.code:
            lines.append(Line(INDENT + finding.code[: WIDTH - len(INDENT)], "code"))
        lines += _wrapped(_sentence(finding.evidence))
        if finding.after_ms < OVERLAPS * finding.gain_ms:
            after = number(finding.after_ms, 3)
            lines.append(Line(f"{INDENT}After the fixes above it saves {after} ms."))
        lines += _wrapped(_sentence(f"Fix: {finding.advice}"), style="fix")
        lines += [Line(f"{INDENT}{each}"[:WIDTH], "code") for each in finding.edit]
    return lines


def how(finding: ScriptFinding) -> str:
    return "tried" if finding.verified else "estimated"


def _row(finding: ScriptFinding, no_cause: str) -> tuple[str, str, str, str]:
    inside = f" in {finding.function}" if finding.function else ""
    inside += f" ({finding.framework})" if finding.framework else ""
    where = name_line(finding.file, finding.line) + inside
    if finding.cause == "compute":
        return "", no_cause, where, ""
    low, high = (number(each, 3) for each in finding.gain_ci)
    saves = f"saves {number(finding.gain_ms, 3)} ms [{low}, {high}]"
    if not finding.gain_ms:
        saves = "costs nothing yet"
    return percent(finding.share), finding.cause, where, saves


def _sums(diagnosis: Diagnosis) -> list[Line]:
    parts = []
    expected, fixes = diagnosis.expected_ms, [e for e in diagnosis.findings if e.gain_ms > 0]
    if expected is not None:
        which = {1: "this fix", 2: "both fixes"}.get(len(fixes), f"all {len(fixes)} fixes")
        low, high = number(expected.low, 3), number(expected.high, 3)
        parts.append(f"After {which}: {number(expected.mean, 3)} ms per step [{low}, {high}].")
    if diagnosis.worth:
        saved = number(diagnosis.worth[-1].per_day / 3600, 2)
        parts.append(f"That is {saved} h of every 24 h.")
    if diagnosis.excluded:
        names = ", ".join(each.cause for each in diagnosis.excluded)
        parts.append(f"Below {percent(SMALLEST_SHARE)}: {names}.")
    return _wrapped(" ".join(parts), " ", "title") if parts else []


def write_option(option: Option) -> str:
    told = f"{option.why}; it changes {option.changes}"
    if option.tried is not None:
        tried = option.tried.sentence
        return f"{option.what} was tried beside the script: {tried} {_sentence(told)}"
    return f"{option.what} was not tried: {told}; try it: {option.command}"


def unknown_lines(diagnosis: Diagnosis) -> list[str]:
    """Which of the first lines' numbers are missing, and why; one of the two rates is enough."""
    speed, where = diagnosis.speed, diagnosis.environment
    if speed is None:
        return []
    readings = {"arithmetic utilization": speed.utilization}
    if where is None or where.device != "cpu":  # which is the step's own device
        readings["device busy share"] = speed.device_busy
    if speed.tokens_per_second.value is None:
        readings["samples per second"] = speed.samples_per_second
    return [f"{name} ({each.reason})" for name, each in readings.items() if each.value is None]


def undecided_lines(diagnosis: Diagnosis) -> list[str]:
    # What is missing of the whole run is no question of one cause.
    return [
        each.reason if each.cause == "compute" else f"{each.cause}: {each.reason}"
        for each in diagnosis.cannot_tell
    ]


def excluded_lines(diagnosis: Diagnosis) -> list[str]:
    return [
        f"{each.cause}: at most {number(max(0.0, each.gain_ci[1]), 3)} ms per step "
        f"({each.evidence})"
        for each in diagnosis.excluded
    ]


def join(lines: Iterable[Line]) -> str:
    return "\n".join(each.text for each in lines)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith('.') else '.'}"


def _wrapped(text: str, indent: str = INDENT, style: Style = "") -> list[Line]:
    """A command is not broken at its hyphens."""
    further = indent + ("  " if indent != INDENT else "")
    found = textwrap.wrap(
        text,
        WIDTH,
        initial_indent=indent,
        subsequent_indent=further,
        break_on_hyphens=False,
        break_long_words=False,
    )
    return [Line(each, style) for each in found]
