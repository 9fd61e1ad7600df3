"""Does a user's file of questions say what it means, and is every fault found with its line?"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from bench.generation.questions import read_questions
from diagnose.workload import Question, WorkloadError

GOOD = {"question": "What is it?", "answer": "a cat"}


def write(folder: Path, *records: object) -> Path:
    path = folder / "asked.jsonl"
    lines = [each if isinstance(each, str) else json.dumps(each) for each in records]
    path.write_text("\n".join(lines), "utf-8")
    return path


@pytest.mark.parametrize(
    ("record", "prompt", "references"),
    [
        (GOOD, "What is it?", ("a cat",)),
        ({"prompt": "Count.", "answers": ["2", "two"]}, "Count.", ("2", "two")),
        ({"instruction": "Add.", "input": "1 + 2", "output": 3}, "Add.\n1 + 2", ("3",)),
        ({"instruction": "Add.", "input": "", "output": 3.5}, "Add.", ("3.5",)),
        ({"question": "?", "references": ["x"]}, "?", ("x",)),
        ({"question": "?", "answers": [{"answer": "x"}, {"answer": "y"}]}, "?", ("x", "y")),
    ],
)
def test_the_usual_names_are_understood(
    tmp_path: Path, record: object, prompt: str, references: tuple[str, ...]
) -> None:
    assert read_questions(write(tmp_path, record)) == [Question("1", prompt, references)]


def test_pictures_are_looked_for_beside_the_file(tmp_path: Path) -> None:
    Image.new("RGB", (4, 3)).save(tmp_path / "cat.png")
    (question,) = read_questions(write(tmp_path, {**GOOD, "id": 7, "image": "cat.png"}))
    assert (question.key, question.image) == ("7", tmp_path / "cat.png")


@pytest.mark.parametrize(
    ("records", "complaint"),
    [
        ((), "asked.jsonl is empty"),
        (("", "  "), "asked.jsonl has no question"),
        ((GOOD, "", "{oops"), "malformed JSON on line 3"),
        ((GOOD, [1]), "line 2 is no object"),
        (({"answer": "x"},), 'line 1 lacks a "question"'),
        (({"question": " ", "answer": "x"},), 'line 1 lacks a "question"'),
        ((GOOD, {"question": "x"}), 'line 2 lacks an "answer"'),
        (({"question": "x", "answers": []},), 'line 1 lacks an "answer"'),
        (({"question": "x", "answers": ["y", ""]},), 'line 1 lacks an "answer"'),
        (({"question": "x", "answer": True},), 'line 1 lacks an "answer"'),
        (({**GOOD, "id": 1}, {**GOOD, "id": "1"}), "line 2 has the same id '1' as line 1"),
        (({**GOOD, "image": "none.png"},), "names the image none.png, which does not exist"),
        (({**GOOD, "image": 3},), "line 1 has an image that is no path"),
        (({**GOOD, "image": "asked.jsonl"},), "asked.jsonl, which cannot be read: it is no"),
        (({**GOOD, "image": "."},), "image ., which cannot be read: Is a directory"),
    ],
)
def test_a_fault_is_told_with_its_line(
    tmp_path: Path, records: tuple[object, ...], complaint: str
) -> None:
    with pytest.raises(WorkloadError) as raised:
        read_questions(write(tmp_path, *records))
    assert complaint in str(raised.value)
    assert "\n" not in str(raised.value)


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"must end in \.jsonl, not in '\.csv'"):
        read_questions(tmp_path / "asked.csv")
    with pytest.raises(WorkloadError, match="does not exist"):
        read_questions(tmp_path / "asked.jsonl")
