"""What is a language model asked? To correct real sentences, or the questions of a user's file."""

from __future__ import annotations

from pathlib import Path

from bench.data import tensors, text
from bench.generation.questions import read_questions
from diagnose.workload import Question

TASK = "Correct this sentence: "


def open_questions(data: Path | None, count: int) -> list[Question]:
    """The first questions of the file, or sentences with errors whose answer is the right one."""
    if data is not None:
        return read_questions(data)[:count]
    corpus = text.read_package()
    pairs = tensors.make_pairs(corpus, min(count, len(corpus)))
    return [
        Question(str(place), TASK + wrong, (right,)) for place, (wrong, right) in enumerate(pairs)
    ]
