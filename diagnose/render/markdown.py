"""How does text from anywhere become Markdown that cannot escape its place?

Model names, error messages and environment values come from outside. A report is pasted into
issues, so none of them may open a tag, a link, a new cell or a mention.
"""

from __future__ import annotations

import re
import unicodedata

# Text longer than this is an error dump; its beginning says what happened.
LONGEST_TEXT = 1000

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_SPECIAL = re.compile(r"([\\`*_\[\]|~$])")
_ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
# Renderers that turn bare addresses and @names into links read the source text.
_AUTOLINK = re.compile(r"(?<=[a-z]):(?=//)|(?<=www)\.", re.IGNORECASE)
_MENTION = re.compile(r"@(?=\w)")
# A name with an underscore is one of code: kv_cache, no_sync(), use_cache=False, --batch_size; and
# so are plain words in backticks.
_CODE = re.compile(
    r"((?<!`)`[\w./:=(),+-][\w ./:=(),+-]*`(?!`)"
    r"|(?<![\w`./:@-])(?=[\w./-]*_)[./-]{0,2}\w[\w./-]*(?<=\w)(?:\(\)|=[\w.]*\w|:\d+)?(?![\w`]))"
)
# A numeric interval followed by nothing that could make it a link reads better unescaped.
_INTERVAL = re.compile(r"\\\[(-?[\d.]+, -?[\d.]+)\\\](?![(\[:\\])")
# Of GitHub's workflow commands, which end with their line.
_COMMAND_DATA = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A"})
_COMMAND_PROPERTY = {**_COMMAND_DATA, ord(":"): "%3A", ord(","): "%2C"}
_SUPERSCRIPT = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


class Markup(str):
    """Text that is Markdown already; everything else is escaped on its way into a table."""

    __slots__ = ()


def clean(text: str) -> str:
    """One line without terminal codes, control, bidirectional or unpaired characters."""
    text = _ANSI.sub("", text)
    kept = []
    for character in text:
        category = unicodedata.category(character)
        if character.isspace() or category in ("Zl", "Zp"):
            kept.append(" ")
        elif category not in ("Cc", "Cf", "Cs", "Co"):
            kept.append(character)
    line = " ".join("".join(kept).split())
    return line if len(line) <= LONGEST_TEXT else line[: LONGEST_TEXT - 1] + "…"


def escape(text: str) -> Markup:
    """Safe inside a table cell, a list item or a paragraph; names of code become code."""
    pieces = _CODE.split(clean(text))
    pieces[::2] = map(_defuse, pieces[::2])
    pieces[1::2] = [f"`{each.strip('`')}`" for each in pieces[1::2]]
    return Markup("".join(pieces))


def _defuse(text: str) -> str:
    text = _SPECIAL.sub(r"\\\1", text).translate(_ENTITIES)
    text = _AUTOLINK.sub(lambda found: f"&#{ord(found.group())};", text)
    return _MENTION.sub("@&#8203;", text)


def prose(text: str) -> Markup:
    """Like escape, but intervals such as [188.9, 191.7] keep their plain brackets."""
    return Markup(_INTERVAL.sub(r"[\1]", escape(text)))


class Footnotes:
    """The reasons for the empty or doubtful cells of one table, in order of appearance."""

    def __init__(self) -> None:
        self._reasons: list[str] = []

    def missing(self, reason: str) -> Markup:
        return Markup("–" + self._mark(reason))

    def doubt(self, text: str, reason: str) -> Markup:
        """A value with the reservation that it was read under, if there is one."""
        return Markup(escape(text) + (self._mark(reason) if reason else ""))

    def has(self, reason: str) -> bool:
        return clean(reason) in self._reasons

    def _mark(self, reason: str) -> str:
        reason = clean(reason) or "no reason was recorded"
        if reason not in self._reasons:
            self._reasons.append(reason)
        return str(self._reasons.index(reason) + 1).translate(_SUPERSCRIPT)

    def lines(self) -> list[str]:
        return [
            f"- {str(number).translate(_SUPERSCRIPT)} {prose(reason)}"
            for number, reason in enumerate(self._reasons, 1)
        ]


def github_warning(file: str, line: int, message: str) -> str:
    """The workflow command that makes GitHub show a message beside a line of code."""
    data = message.translate(_COMMAND_DATA)
    return f"::warning file={file.translate(_COMMAND_PROPERTY)},line={line}::{data}"
