"""How does a trace get a track with what was found in it? It is copied, with events put in front.

Nothing of the trace itself is parsed or changed, so that the copy needs no memory.
"""

from __future__ import annotations

import contextlib
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from diagnose.measure.trace.stream import OPENING, unpack
from diagnose.records.diagnosis import Diagnosis
from diagnose.records.trace import RankTrace

# No process of the trace has it.
_PROCESS = 2**31 - 7


def write_with_track(source: Path, target: Path, rank: RankTrace, found: Diagnosis) -> None:
    """Packed where the name of the target says so."""
    track = ",".join(json.dumps(each) for each in _events(rank, found)).encode()
    create: Any = gzip.open if target.suffix == ".gz" else open
    with create(target, "wb") as writer, contextlib.suppress(EOFError):
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
    """A process of our own: the step that is drawn with its gaps, and the findings over it."""
    place = {"pid": _PROCESS, "tid": 1}
    yield {"ph": "M", "name": "process_name", **place, "args": {"name": "diagnose"}}
    start = rank.drawn_at
    length = max((each.end for each in rank.picture), default=0.0)
    for number, each in enumerate(found.findings, start=2):
        lane = {"pid": _PROCESS, "tid": number}
        yield {"ph": "M", "name": "thread_name", **lane, "args": {"name": each.cause}}
        yield {
            "ph": "X",
            "cat": "diagnose",
            "name": f"{each.cause}: at most {each.gain_ci[1]:.3g} ms per step",
            **lane,
            "ts": start,
            "dur": length * rank.ticks,
            "args": {"line": f"{each.file}:{each.line}", "why": each.evidence, "do": each.advice},
        }
    for piece in rank.picture:
        if piece.lane == "device":
            yield {
                "ph": "X",
                "cat": "diagnose",
                "name": piece.kind,
                **place,
                "ts": start + piece.start * rank.ticks,
                "dur": (piece.end - piece.start) * rank.ticks,
            }
