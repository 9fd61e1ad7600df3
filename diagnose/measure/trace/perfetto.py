"""How does a trace get a track with what was found in it? It is copied, with events put in front.

Nothing of the trace itself is parsed or changed, so that the copy needs no memory.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from diagnose.measure.trace.stream import OPENING, unpack
from diagnose.records.diagnosis import Diagnosis
from diagnose.records.trace import RankTrace

# No process of the trace has it.
_PROCESS = 2**31 - 7


def write_with_track(source: Path, target: Path, rank: RankTrace, found: Diagnosis) -> None:
    """Packed where the name of the target says so; of a damaged file what is whole."""
    track = ",".join(json.dumps(each) for each in _events(rank, found)).encode()
    create: Any = gzip.open if target.suffix == ".gz" else open
    with create(target, "wb") as writer, contextlib.suppress(EOFError, zlib.error):
        _copy(unpack(source), writer, track)


def _copy(chunks: Iterator[bytes], writer: BinaryIO, track: bytes) -> None:
    text = b""
    for chunk in chunks:
        text += chunk
        opening = OPENING.search(text)
        if opening is not None:
            rest = text[opening.end() :].lstrip()
            comma = b"" if rest.startswith(b"]") else b","
            writer.write(text[: opening.end()] + track + comma + rest)
            break
    for chunk in chunks:
        writer.write(chunk)


def _events(rank: RankTrace, found: Diagnosis) -> Iterator[dict[str, Any]]:
    """A process of our own: every step, one with its gaps, and the findings over that one."""
    yield {"ph": "M", "name": "process_name", "pid": _PROCESS, "args": {"name": "diagnose"}}
    drawn = rank.steps[rank.drawn]

    def piece(lane: int, name: str, start: float, seconds: float, args: object) -> dict[str, Any]:
        times = {"ts": rank.zero + start * rank.ticks, "dur": seconds * rank.ticks}
        place = {"pid": _PROCESS, "tid": lane}
        return {"ph": "X", "cat": "diagnose", "name": name, **place, **times, "args": args}

    lanes = ("steps", "device", *(each.cause for each in found.findings))
    for lane, name in enumerate(lanes, start=1):
        place = {"pid": _PROCESS, "tid": lane}
        yield {"ph": "M", "name": "thread_name", **place, "args": {"name": name}}
    for each in rank.steps:
        busy = f", device busy {each.busy / each.seconds:.0%}" if each.idle is not None else ""
        idle = {f"idle ms: {name}": ms * 1e3 for name, ms in (each.idle or {}).items()}
        yield piece(1, f"step{busy}", each.start, each.seconds, idle)
    for part in rank.picture:
        if part.lane == "device":
            yield piece(2, part.kind, drawn.start + part.start, part.end - part.start, {})
    for lane, each_found in enumerate(found.findings, start=3):
        name = f"{each_found.cause}: at most {each_found.gain_ci[1]:.3g} ms per step"
        where = f"{each_found.file}:{each_found.line}"
        args = {"line": where, "why": each_found.evidence, "do": each_found.advice}
        yield piece(lane, name, drawn.start, drawn.seconds, args)
