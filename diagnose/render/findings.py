"""How is a finding shown? What to do stays open; what supports it is folded."""

from __future__ import annotations

from collections.abc import Sequence

from diagnose.analyze.findings import Finding
from diagnose.render.markdown import escape, prose
from diagnose.render.page import Place, Section


def finding_sections(
    findings: Sequence[Finding], of: str, no_cause: str = "No cause was found."
) -> list[Section]:
    """Causes with advice, one paragraph of what is excluded, one sentence for all flags.

    Several records raise the same flags: `of` says what was measured in this one. `no_cause` is
    said if no record of the report has anything to do.
    """
    causes = _of(findings, "cause")
    excluded = _of(findings, "excluded")
    undecided = _of(findings, "cannot tell")
    flags = _of(findings, "flag")
    return [
        Section(Place.TO_DO, "What to do", _lines(causes), nothing=no_cause),
        Section(Place.EXCLUDED, "Excluded", _short(excluded)),
        Section(Place.LEFT, "Cannot tell", _short(undecided)),
        Section(Place.LEFT, "Flags", _sentence(flags, of)),
        _evidence("Why causes are excluded", excluded),
        _evidence("Why some things cannot be told", undecided),
        _evidence("Evidence for the flags", flags, of),
    ]


def _of(findings: Sequence[Finding], verdict: str) -> list[Finding]:
    return [each for each in findings if each.verdict == verdict]


def _evidence(title: str, findings: Sequence[Finding], of: str = "") -> Section:
    blocks = [f"{of}:"] if of and findings else []
    return Section(Place.DETAILS, title, [*blocks, *_lines(findings)], folded=True)


def _short(findings: Sequence[Finding]) -> list[str]:
    return [prose(" ".join(each.sentence for each in findings))] if findings else []


def _sentence(findings: Sequence[Finding], of: str) -> list[str]:
    """The worst first, so that the eye meets it."""
    severities = ("critical", "warning", "info")
    ordered = sorted(findings, key=lambda each: severities.index(each.severity))
    text = "; ".join(f"{_begin(each.sentence).rstrip('.')}{_mark(each)}" for each in ordered)
    return [f"- {prose(f'{of}: {text}.')}"] if text else []


def _begin(sentence: str) -> str:
    """Without its capital letter, for the middle of another; names such as NVML keep theirs."""
    return sentence if sentence[:2].isupper() else sentence[0].lower() + sentence[1:]


def _lines(findings: Sequence[Finding]) -> list[str]:
    return [_line(each) for each in findings]


def _line(finding: Finding) -> str:
    sentence = f"**{prose(finding.sentence.rstrip('.'))}**{_mark(finding)}"
    evidence = f": {prose(finding.evidence.rstrip('.'))}." if finding.evidence else "."
    advice = f" *{escape(finding.advice)}*" if finding.advice else ""
    return f"- {sentence}{evidence}{advice}"


def _mark(finding: Finding) -> str:
    return "" if finding.severity == "info" else f" ({finding.severity})"
