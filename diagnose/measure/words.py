"""How does an error become one sentence that can be published? Without paths, and short."""

from __future__ import annotations

import re

MOST_CHARACTERS = 300
# A path says where somebody keeps their files; its last part is all that a reader needs.
_PATH = re.compile(r"(?:[A-Za-z]:)?(?:[/\\][^\s/\\:'\",;()]+)+[/\\]([^\s/\\:'\",;()]+)")
_WORKER_TRACEBACK = "Original Traceback"


def without_paths(text: str) -> str:
    return _PATH.sub(r"\1", text)


def name_missing_package(error: Exception) -> str:
    """What to install where an import found nothing; "" for any other error."""
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return ""
    package = error.name.partition(".")[0]
    return (
        f"this job needs the package {package}, which is not installed; run pip install {package}, "
        'or for the built-in workloads pip install -e ".[suite]" in the clone'
    )


def one_sentence(text: str) -> str:
    """One line, without paths. Of a loader worker's traceback its last line is the cause."""
    if _WORKER_TRACEBACK in text:
        lines = [line for line in text.splitlines() if line.strip()]
        text = f"in a loader worker: {lines[-1]}"
    text = " ".join(without_paths(text).split()) or "no message"
    if len(text) > MOST_CHARACTERS:
        text = text[: MOST_CHARACTERS - 3] + "..."
    return text
