"""How is a trace read that does not fit into memory? Event by event, from plain or packed JSON.

Only a few megabytes of text are held at a time. A file that ends too early gives what is whole of
it: profilers are killed, disks fill up, and half a trace still answers most questions.
"""

from __future__ import annotations

import codecs
import contextlib
import json
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from diagnose.measure.session import Refused

Event = dict[str, Any]

_CHUNK_BYTES = 4 * 2**20
# No event is longer; text without an end of one is damaged.
_LONGEST_EVENT = 64 * 2**20
_GZIP_MAGIC, _GZIP = b"\x1f\x8b", 31
_OPENING = re.compile(r'"traceEvents"\s*:\s*\[')
_BETWEEN = re.compile(r"[\s,]*")
# Names of kernels may hold a raw control character.
_SCAN: Callable[[str, int], tuple[Any, int]]
_SCAN = json.JSONDecoder(strict=False).scan_once  # type: ignore[attr-defined]


class Stream:
    """The events of one file; what was found about the file itself stands here afterwards."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.head: dict[str, Any] = {}  # what stands beside the events
        self.damage = ""  # why the file is not whole; "" where it is
        self.characters = 0  # of JSON

    def events(self) -> Iterator[Event]:
        """Every whole event. A Refused where the file is no trace at all."""
        try:
            yield from self._events(self._texts())
        except OSError as error:
            raise Refused(f"{self.path} cannot be read: {error.strerror or error}") from None

    def _texts(self) -> Iterator[str]:
        decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
        try:
            for chunk in unpack(self.path):
                text = decode(chunk)
                self.characters += len(text)
                yield text
        except (EOFError, zlib.error):
            self.damage = "the packed file ends too early or is damaged"

    def _events(self, texts: Iterator[str]) -> Iterator[Event]:
        text, at = self._open(texts)
        while True:
            at = _BETWEEN.match(text, at).end()  # type: ignore[union-attr]
            if text.startswith("]", at):
                self._close(text[at + 1 :] + "".join(texts))
                return
            try:
                event, at = _SCAN(text, at)
            except (StopIteration, ValueError, RecursionError):
                more = next(texts, "")
                if not more or len(text) - at > _LONGEST_EVENT:
                    self.damage = self.damage or (
                        "it holds text that is not JSON" if more else "the file ends too early"
                    )
                    return
                text, at = text[at:] + more, 0
                continue
            if isinstance(event, dict):
                yield event

    def _open(self, texts: Iterator[str]) -> tuple[str, int]:
        """The text from the first event on; whatever stands before it becomes the head."""
        text = next(texts, "")
        start = text.lstrip()[:1]
        if start == "[":
            return text, text.index("[") + 1
        if start != "{":
            raise Refused(f"{self.path} is not JSON: name a trace that torch.profiler exported")
        while (found := _OPENING.search(text)) is None:
            more = next(texts, "")
            if not more or len(text) > _LONGEST_EVENT:
                why = self.damage or "it has no traceEvents"
                raise Refused(f"{self.path} is not a trace: {why}")
            text += more
        try:
            self.head = json.loads(text[: found.start()].rstrip().rstrip(",") + "}", strict=False)
        except ValueError:
            self.head = {}
        return text, found.end()

    def _close(self, rest: str) -> None:
        """Some writers put the facts about the machine behind the events."""
        with contextlib.suppress(ValueError):
            self.head.update(json.loads("{" + rest.strip().removeprefix(","), strict=False))


def unpack(path: Path) -> Iterator[bytes]:
    """The JSON of a trace, whatever the file is called.

    An EOFError after the last whole piece of a packed file that was cut.
    """
    with path.open("rb") as file:
        chunk = file.read(_CHUNK_BYTES)
        if not chunk.startswith(_GZIP_MAGIC):
            while chunk:
                yield chunk
                chunk = file.read(_CHUNK_BYTES)
            return
        member, is_whole = zlib.decompressobj(wbits=_GZIP), False
        while chunk:
            if text := member.decompress(chunk, _CHUNK_BYTES):
                yield text
            is_whole, chunk = member.eof, member.unconsumed_tail or member.unused_data
            if is_whole:
                member = zlib.decompressobj(wbits=_GZIP)
            chunk = chunk or file.read(_CHUNK_BYTES)
        if not is_whole:
            raise EOFError(path)
