"""How do answers survive a crash? Every rank writes its own file, a line for each step.

A folder holds the parts of one evaluation: rank-0.jsonl, rank-1.jsonl ..., an empty
rank-0.finished beside each that is done, and, after a resumption, kept.jsonl with what earlier
attempts had. Questions are known by their place in the data, so any number of ranks can go on
with what is missing. No torch here.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from diagnose.records.codec import from_dict, to_dict
from diagnose.records.evaluation import RankStep, Step
from diagnose.records.files import write_file

if TYPE_CHECKING:
    from diagnose.workload import Question

KEPT_NAME = "kept.jsonl"


class Part:
    """The file of one rank, whole up to its last line at every moment."""

    def __init__(self, folder: Path, rank: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._rank = rank
        self._mark = finished_path(folder, rank)
        self._file = (folder / f"rank-{rank}.jsonl").open("a", encoding="utf-8")

    def __enter__(self) -> Part:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, step: Step) -> None:
        self._file.write(_as_line(RankStep(self._rank, step)))
        self._file.flush()

    def finish(self) -> None:
        self._mark.touch()


def finished_path(folder: Path, rank: int) -> Path:
    """There as soon as the rank has written all that it ever will."""
    return folder / f"rank-{rank}.finished"


def read_steps(folder: Path) -> list[RankStep]:
    """What all parts hold; an answer that two of them have counts once."""
    seen: set[int] = set()
    steps = []
    # "kept" comes before "rank": earlier attempts first, in the order in which they were made.
    for path in sorted(folder.glob("*.jsonl")):
        for found in _read_part(path):
            if seen.isdisjoint(answer.index for answer in found.step.answers):
                seen.update(answer.index for answer in found.step.answers)
                steps.append(found)
    return steps


def keep_only(folder: Path) -> list[RankStep]:
    """Put what earlier attempts left into one file, so that new parts can be begun."""
    steps = read_steps(folder)
    text = "".join(map(_as_line, steps))
    write_file(folder / KEPT_NAME, lambda part: part.write_text(text, "utf-8"))
    for path in folder.glob("rank-*"):
        path.unlink()
    return steps


def share_of(
    questions: Sequence[Question], steps: Sequence[RankStep], rank: int, world_size: int
) -> dict[int, Question]:
    """What this rank has still to answer: every so many-th of what nobody has answered yet."""
    answered = {answer.index for each in steps for answer in each.step.answers}
    missing = [index for index in range(len(questions)) if index not in answered]
    return {index: questions[index] for index in missing[rank::world_size]}


def _as_line(step: RankStep) -> str:
    return json.dumps(to_dict(step)) + "\n"


def _read_part(path: Path) -> Iterator[RankStep]:
    for line in path.read_text("utf-8", errors="replace").split("\n"):
        # The line during which a rank was killed, or a damaged one: its questions are asked again.
        with contextlib.suppress(ValueError):
            yield from_dict(RankStep, json.loads(line), "step")
