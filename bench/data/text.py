"""Where do the sentences come from? An installed package by default, or the user's own file."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.data import vocabulary
from diagnose.workload import WorkloadError

PACKAGE = "jupyterlab-language-pack-zh-CN"
_MODULE = "jupyterlab_language_pack_zh_CN"
_CATALOGUES = "locale/zh_CN/LC_MESSAGES"
# Menu words such as "打开文件" are no sentences; with fewer characters an error has no context.
_LEAST_HAN = 5
_SENTENCE_END = re.compile(r"(?<=[。！？])(?![”’」』）])|\n")


@dataclass(frozen=True)
class Corpus:
    """Clean sentences whose errors are yet to be generated, or the user's pairs: never both."""

    description: str  # names a package or a file, never a directory of the user
    sha256: str
    sentences: tuple[str, ...] = ()
    pairs: tuple[tuple[str, str], ...] = ()  # source with errors, target without, equally long

    def __len__(self) -> int:
        return len(self.sentences) + len(self.pairs)


def read(path: Path | None) -> Corpus:
    """The user's file if one is given, else the sentences of the installed package."""
    return read_package() if path is None else read_file(path)


def read_package(module: str = _MODULE) -> Corpus:
    """Interface sentences that people translated: real Chinese under a licence free of doubt."""
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise WorkloadError(
            f"the default sentences are missing; run `pip install {PACKAGE}` "
            "or give your own with --data"
        )
    folder = Path(spec.submodule_search_locations[0]) / _CATALOGUES
    sentences: set[str] = set()
    # The package holds every catalogue twice, as .mo and as .json, with the same sentences.
    for file in folder.glob("*.json"):
        for message in _strings(json.loads(file.read_text("utf-8"))):
            sentences.update(piece.strip() for piece in _SENTENCE_END.split(message))
    usable = tuple(sorted(s for s in sentences if sum(map(vocabulary.is_han, s)) >= _LEAST_HAN))
    if not usable:
        raise WorkloadError(
            f"the installed {PACKAGE} holds no Chinese sentence; "
            f"run `pip install --force-reinstall {PACKAGE}` or give your own with --data"
        )
    return Corpus(
        description=f"{PACKAGE} {importlib.metadata.version(PACKAGE)} (BSD-3-Clause)",
        sha256=hashlib.sha256("\n".join(usable).encode()).hexdigest(),
        sentences=usable,
    )


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, dict)):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _strings(each)


def read_file(path: Path) -> Corpus:
    """Sentences (.txt, .jsonl with "text") or pairs (.tsv, .jsonl with "source" and "target")."""
    if path.suffix not in _PARSERS:
        raise WorkloadError(
            f"data file {path.name} must end in {', '.join(_PARSERS)}, not in '{path.suffix}'"
        )
    content = _read_bytes(path)
    lines = _numbered_lines(path.name, content)
    rows = [(number, _PARSERS[path.suffix](path.name, number, line)) for number, line in lines]
    sentences = tuple(row[0] for _, row in rows if len(row) == 1)
    pairs = [(number, row[0], row[1]) for number, row in rows if len(row) == 2]
    if sentences and pairs:
        raise WorkloadError(
            f"data file {path.name} mixes sentences and pairs: line {pairs[0][0]} has a source and "
            "a target while others have only a text; split it into two files"
        )
    _require_equal_lengths(path.name, pairs)
    usable = tuple(s for s in sentences if any(map(vocabulary.is_han, s)))
    if not usable and not pairs:
        raise WorkloadError(
            f"data file {path.name} has no usable sentence: no line holds a Chinese character"
        )
    return Corpus(
        description=path.name,
        sha256=hashlib.sha256(content).hexdigest(),
        sentences=usable,
        pairs=tuple((source, target) for _, source, target in pairs),
    )


def read_lines(path: Path) -> list[tuple[int, str]]:
    """The lines of a text file that are not blank, with the numbers an editor shows."""
    return _numbered_lines(path.name, _read_bytes(path))


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise WorkloadError(f"data file {path} does not exist") from None
    except OSError as error:
        raise WorkloadError(f"data file {path} cannot be read: {error.strerror}") from error


def _numbered_lines(name: str, content: bytes) -> list[tuple[int, str]]:
    if not content:
        raise WorkloadError(f"data file {name} is empty")
    nul = content.find(b"\0")
    if nul >= 0:
        raise WorkloadError(
            f"data file {name} has a NUL byte on line {_line_of(content, nul)} (byte {nul}), "
            "so it is binary or UTF-16; save it as UTF-8 text"
        )
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise WorkloadError(
            f"data file {name} is not UTF-8 on line {_line_of(content, error.start)} "
            f"(byte {error.start}); save it as UTF-8"
        ) from error
    # Not str.splitlines: it also breaks at characters such as U+2028 that editors do not count.
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]


def _line_of(content: bytes, offset: int) -> int:
    before = content[:offset].replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return before.count(b"\n") + 1


def _parse_text(name: str, number: int, line: str) -> tuple[str, ...]:
    return (line.strip(),)


def _parse_tsv(name: str, number: int, line: str) -> tuple[str, ...]:
    columns = tuple(column.strip() for column in line.split("\t"))
    if len(columns) == 1:
        raise WorkloadError(
            f"data file {name} has no tab on line {number}; each line must be source, tab, target"
        )
    if len(columns) > 2 or not all(columns):
        raise WorkloadError(
            f"data file {name} has {len(columns)} columns, {columns.count('')} of them empty, "
            f"on line {number}; each line must be source, tab, target"
        )
    return columns


def parse_json(name: str, number: int, line: str) -> Any:
    try:
        return json.loads(line)
    # A ValueError also for a number with too many digits, a RecursionError for deep nesting.
    except (ValueError, RecursionError) as error:
        raise WorkloadError(
            f"data file {name} has malformed JSON on line {number}: {error}"
        ) from error


def _parse_jsonl(name: str, number: int, line: str) -> tuple[str, ...]:
    record = parse_json(name, number, line)
    for keys in (("text",), ("source", "target")):
        values = [record.get(key) if isinstance(record, dict) else None for key in keys]
        texts = tuple(value.strip() for value in values if isinstance(value, str))
        if len(texts) == len(keys) and all(texts):
            return texts
    raise WorkloadError(
        f"data file {name} lacks a key on line {number}; each line must be "
        '{"text": "..."} or {"source": "...", "target": "..."}'
    )


def _require_equal_lengths(name: str, pairs: list[tuple[int, str, str]]) -> None:
    """Spelling correction replaces characters; a pair that inserts or deletes has no labels."""
    unequal = [pair for pair in pairs if len(pair[1]) != len(pair[2])]
    if unequal:
        number, source, target = unequal[0]
        raise WorkloadError(
            f"data file {name} has {len(unequal)} line{'s' if len(unequal) > 1 else ''} whose "
            f"source and target differ in length, the first is line {number} with {len(source)} "
            f"and {len(target)} characters; correct or remove "
            f"{'them' if len(unequal) > 1 else 'it'}"
        )


_PARSERS = {".txt": _parse_text, ".tsv": _parse_tsv, ".jsonl": _parse_jsonl}
