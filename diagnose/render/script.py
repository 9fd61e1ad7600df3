"""What does a person read after the run? The answer first, then the causes, then what is not it."""

from __future__ import annotations

from diagnose.analyze.units import number, percent
from diagnose.records.script import Diagnosis, ScriptFinding


def summarize(diagnosis: Diagnosis) -> str:
    lines = [f"diagnose: {diagnosis.sentence}"]
    lines += [line for finding in diagnosis.findings for line in _finding(finding)]
    if diagnosis.phases:
        parts = [f"{name} {number(ms, 3)}" for name, ms in diagnosis.phases.items()]
        lines.append(f"  phases in ms: {', '.join(parts)}")
    if diagnosis.excluded:
        lines.append("  excluded:")
        lines += [
            f"    {each.cause}: at most {number(max(0.0, each.gain_ci[1]), 3)} ms ({each.evidence})"
            for each in diagnosis.excluded
        ]
    lines += [f"  cannot tell {each.cause}: {each.reason}" for each in diagnosis.cannot_tell]
    if "share" in diagnosis.overhead:
        share = diagnosis.overhead["share"]
        lines.append(
            f"  {diagnosis.steps} steps; the hook between plain steps takes {percent(share)} of one"
        )
    lines += [f"  note: {each}" for each in diagnosis.notes]
    return "\n".join(lines)


def _finding(finding: ScriptFinding) -> list[str]:
    if finding.cause == "compute":
        return [f"  compute: {finding.evidence}"]
    low, high = finding.gain_ci
    how = "tried" if finding.verified else "estimated"
    where = f"{finding.file}:{finding.line}"
    return [
        f"  {finding.cause}: {where} in {finding.function or '?'}: "
        f"{number(finding.gain_ms, 3)} [{number(low, 3)}, {number(high, 3)}] ms per step, "
        f"{percent(finding.share)}, {how}",
        f"    {finding.evidence}",
        f"    advice: {finding.advice}",
    ]
