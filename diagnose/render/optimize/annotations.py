"""What should GitHub show beside the code? One workflow command per line that stands out."""

from __future__ import annotations

from diagnose.analyze.optimize.launches import find_reasons, source_lines
from diagnose.records.experiments import LaunchMap
from diagnose.render.markdown import clean


def annotate(of: LaunchMap) -> list[str]:
    """A warning for each line that loops, synchronizes, or makes the largest tensor."""
    found = []
    for line in source_lines(of):
        reasons = find_reasons(line, of)
        if reasons:
            message = f"{'; '.join(reasons)}: {clean(line.code)}"
            found.append(warn(line.file, line.line, message))
    return found


def warn(file: str, line: int, message: str) -> str:
    return f"::warning file={_escape_property(file)},line={line}::{_escape_data(message)}"


def _escape_data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _escape_property(text: str) -> str:
    return _escape_data(text).replace(":", "%3A").replace(",", "%2C")
