"""How is a finding shown? What to do stays open; what supports it is folded."""

from __future__ import annotations

from collections.abc import Sequence

from diagnose.analyze.findings import Finding
from diagnose.render.markdown import escape, prose
from diagnose.render.page import Place, Section


def finding_sections(
    findings: Sequence[Finding], of: str, no_cause: str = "No cause was found."
) -> list[Section]:
    """Causes with advice, one line for each thing excluded, one sentence for all flags.

    Several records raise the same flags: `of` says what was measured in this one.
    """
    causes = _of(findings, "cause")
    excluded = _of(findings, "excluded")
    undecided = _of(findings, "cannot tell")
    flags = _of(findings, "flag")
    return [
        Section(Place.TO_DO, "What to do", [_lines(causes) or no_cause]),
        Section(Place.EXCLUDED, "Excluded", _short(excluded)),
        _evidence(Place.EXCLUDED, "Why these are excluded", excluded),
        Section(Place.LEFT, "Cannot tell", _short(undecided)),
        _evidence(Place.LEFT, "Why this cannot be told", undecided),
        Section(Place.LEFT, "Flags", _sentence(flags, of)),
        _evidence(Place.LEFT, "Evidence for the flags", flags, of),
    ]


def _of(findings: Sequence[Finding], verdict: str) -> list[Finding]:
    return [each for each in findings if each.verdict == verdict]


def _evidence(place: Place, title: str, findings: Sequence[Finding], of: str = "") -> Section:
    blocks = [*([f"{of}:"] if of else []), _lines(findings)] if findings else []
    return Section(place, title, blocks, folded=True)


def _short(findings: Sequence[Finding]) -> list[str]:
    lines = [f"- {prose(each.sentence)}" for each in findings]
    return ["\n".join(lines)] if lines else []


def _sentence(findings: Sequence[Finding], of: str) -> list[str]:
    """The worst first, so that the eye meets it."""
    severities = ("critical", "warning", "info")
    ordered = sorted(findings, key=lambda each: severities.index(each.severity))
    text = "; ".join(f"{_begin(each.sentence).rstrip('.')}{_mark(each)}" for each in ordered)
    return [prose(f"{of}: {text}.")] if text else []


def _begin(sentence: str) -> str:
    """Without its capital letter, for the middle of another; names such as NVML keep theirs."""
    return sentence if sentence[:2].isupper() else sentence[0].lower() + sentence[1:]


def _lines(findings: Sequence[Finding]) -> str:
    return "\n".join(_line(each) for each in findings)


def _line(finding: Finding) -> str:
    sentence = f"**{prose(finding.sentence.rstrip('.'))}**{_mark(finding)}"
    evidence = f": {prose(finding.evidence.rstrip('.'))}." if finding.evidence else "."
    advice = f" *{escape(finding.advice)}*" if finding.advice else ""
    return f"- {sentence}{evidence}{advice}"


def _mark(finding: Finding) -> str:
    return "" if finding.severity == "info" else f" ({finding.severity})"
