"""How is a trace read that does not fit into memory? Slice by slice, from plain or packed JSON.

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
from typing import Any, Optional, TypedDict

from diagnose.measure.session import Refused

Event = dict[str, Any]

_CHUNK_BYTES = 2**20
# No event is longer; text without an end of one is damaged.
_LONGEST_EVENT = 16 * 2**20
_GZIP_MAGIC, _GZIP = b"\x1f\x8b", 31
OPENING = re.compile(rb'"traceEvents"\s*:\s*\[|\A\s*\[')
_BETWEEN = re.compile(r"[\s,]*")
# Between two events. One inside a name or an argument is no border, and does not parse as one.
_BORDER = re.compile(rb"\}\s*,\s*\{")
_LAST_BYTES = 2**16
# Names of kernels may hold a raw control character.
_SCAN: Callable[[str, int], tuple[Any, int]]
_SCAN = json.JSONDecoder(strict=False).scan_once  # type: ignore[attr-defined]

# All that is asked of an event; a parser that knows it skips the rest.
_Arguments = TypedDict(
    "_Arguments",
    {
        "Call stack": Any,
        "Input type": Any,
        "Input Dims": Any,
        "Sequence number": Any,
        "correlation": Any,
        "stream": Any,
        "device": Any,
        "Group size": Any,
        "Bytes": Any,
        "Addr": Any,
        "Total Allocated": Any,
        "Device Type": Any,
    },
    total=False,
)


class _Event(TypedDict, total=False):
    ph: Any
    cat: Any
    name: Any
    pid: Any
    tid: Any
    ts: Any
    dur: Any
    args: Optional[_Arguments]  # noqa: UP045 (read at run time, on 3.10 too)


_parse: Callable[[bytes], list[Any]] = json.loads
_FAULTS: tuple[type[Exception], ...] = (ValueError, RecursionError)
try:
    import msgspec
except ImportError:
    HAS_EXTRA = False
else:
    HAS_EXTRA = True
    _Arguments.__annotations__["Input Dims"] = msgspec.Raw
    _parse = msgspec.json.Decoder(list[_Event]).decode
    _FAULTS = (*_FAULTS, msgspec.MsgspecError)


def parse_later(value: Any) -> Any:
    """What was not parsed with its event, because hardly anybody asks."""
    return json.loads(bytes(value)) if HAS_EXTRA and isinstance(value, msgspec.Raw) else value


class Stream:
    """The events of one file; what was found about the file itself stands here afterwards."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.head: dict[str, Any] = {}  # what stands beside the events
        self.damage = ""  # why the file is not whole; "" where it is
        self._is_closed = False  # the end of the list of events was read

    def events(self) -> Iterator[Event]:
        """Every whole event. A Refused where the file is no trace at all."""
        try:
            chunks = self._chunks()
            rest = self._open(chunks)
            while True:
                events, rest = self._split(rest)
                yield from events
                if self._is_closed:
                    return self._close(rest + b"".join(chunks))
                more = next(chunks, b"")
                if not events and (not more or len(rest) > _LONGEST_EVENT):
                    why = "it holds text that is not JSON" if more else "the file ends too early"
                    self.damage = self.damage or why
                    return None
                rest += more
        except OSError as error:
            raise Refused(f"{self.path} cannot be read: {error.strerror or error}") from None

    def _chunks(self) -> Iterator[bytes]:
        try:
            yield from unpack(self.path)
        except (EOFError, zlib.error):
            self.damage = "the packed file ends too early or is damaged"

    def _split(self, text: bytes) -> tuple[list[Event], bytes]:
        """The whole events at its beginning, and the rest."""
        last = 0
        for border in _BORDER.finditer(text, max(0, len(text) - _LAST_BYTES)):
            last = border.start() + 1
        with contextlib.suppress(*_FAULTS):
            if last:
                events = _parse(b"[%b]" % text[:last].lstrip(b" \t\r\n,"))
                return [each for each in events if _is_event(each)], text[last:]
        return self._split_one_by_one(text)

    def _split_one_by_one(self, raw: bytes) -> tuple[list[Event], bytes]:
        """The same, whatever stands between the events and behind them."""
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        text, at = decoder.decode(raw), 0
        events: list[Event] = []
        while True:
            at = _BETWEEN.match(text, at).end()  # type: ignore[union-attr]
            self._is_closed = text.startswith("]", at)
            try:
                event, at = _SCAN(text, at)
            except (StopIteration, ValueError, RecursionError):
                return events, text[at + self._is_closed :].encode() + decoder.getstate()[0]
            if _is_event(event):
                events.append(event)

    def _open(self, chunks: Iterator[bytes]) -> bytes:
        """The text from the first event on; whatever stands before it becomes the head."""
        text = next(chunks, b"").removeprefix(codecs.BOM_UTF8)
        if text.lstrip()[:1] not in (b"[", b"{"):
            raise Refused(f"{self.path} is not JSON: name a trace that torch.profiler exported")
        while (found := OPENING.search(text)) is None:
            more = next(chunks, b"")
            if not more or len(text) > _LONGEST_EVENT:
                why = self.damage or "it has no traceEvents"
                raise Refused(f"{self.path} is not a trace: {why}")
            text += more
        self._read_head(text[: found.start()].rstrip().rstrip(b",") + b"}")
        rest = text[found.end() :].lstrip()
        if rest[:1] not in (b"{", b"]", b""):
            raise Refused(f"{self.path} is not a trace: its list holds no events")
        return rest

    def _close(self, rest: bytes) -> None:
        """Some writers put the facts about the machine behind the events."""
        self._read_head(b"{" + rest.strip().removeprefix(b","))

    def _read_head(self, text: bytes) -> None:
        with contextlib.suppress(ValueError, RecursionError):
            self.head.update(json.loads(text, strict=False))


def _is_event(event: Any) -> bool:
    return isinstance(event, dict) and isinstance(event.get("args", event), dict | None)


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
