"""What is asked? The questions of a user's .jsonl file, every fault with its line number."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.data.text import parse_json, read_lines
from diagnose.workload import Question, WorkloadError

# The names that evaluation sets have for the same thing, the commonest first.
PROMPTS = ("question", "prompt", "instruction")
ANSWERS = ("answer", "answers", "output", "reference", "references")
EXAMPLE = '{"question": "...", "answer": "..."}'


def read_questions(path: Path) -> list[Question]:
    """All of the file's questions, in its order; pictures are looked for beside the file."""
    if path.suffix != ".jsonl":
        raise WorkloadError(f"data file {path.name} must end in .jsonl, not in '{path.suffix}'")
    questions = list(_parse(path))
    if not questions:
        raise WorkloadError(f"data file {path.name} has no question: all of its lines are blank")
    return questions


def _parse(path: Path) -> Iterator[Question]:
    first_lines: dict[str, int] = {}
    for number, line in read_lines(path):
        record = parse_json(path.name, number, line)
        if not isinstance(record, dict):
            raise _fault(path, number, f"is no object; each line must be like {EXAMPLE}")
        key = str(record.get("id", number))
        if key in first_lines:
            raise _fault(path, number, f"has the same id '{key}' as line {first_lines[key]}")
        first_lines[key] = number
        yield Question(
            key,
            _find_prompt(path, number, record),
            _find_references(path, number, record),
            _find_image(path, number, record),
        )


def _find_prompt(path: Path, number: int, record: Mapping[str, Any]) -> str:
    prompt = next((record[name] for name in PROMPTS if name in record), None)
    if not isinstance(prompt, str) or not prompt.strip():
        raise _fault(path, number, f"lacks a {_listed(PROMPTS)}; each line must be like {EXAMPLE}")
    more = record.get("input")
    return f"{prompt}\n{more}" if isinstance(more, str) and more.strip() else prompt


def _find_references(path: Path, number: int, record: Mapping[str, Any]) -> tuple[str, ...]:
    found = next((record[name] for name in ANSWERS if name in record), None)
    listed = found if isinstance(found, list) else [found]
    # VQA v2 has ten annotators' answers as {"answer": ...}.
    texts = [each.get("answer") if isinstance(each, dict) else each for each in listed]
    references = [_as_text(text) for text in texts]
    if not references or not all(references):
        raise _fault(path, number, f"lacks an {_listed(ANSWERS)}; each line must be like {EXAMPLE}")
    return tuple(references)


def _as_text(value: object) -> str:
    """Numbers are answers too, as in {"answer": 3}; true is none, but {"answer": "true"} is."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    return value.strip() if isinstance(value, str) else ""


def _find_image(path: Path, number: int, record: Mapping[str, Any]) -> Path | None:
    name = record.get("image")
    if name is None:
        return None
    if not isinstance(name, str) or not name:
        raise _fault(path, number, 'has an image that is no path; write {"image": "file.jpg", ...}')
    image = path.parent / name
    try:
        check_image(image)
    except FileNotFoundError:
        raise _fault(path, number, f"names the image {name}, which does not exist") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is no picture that Pillow knows"
        raise _fault(
            path, number, f"names the image {name}, which cannot be read: {reason}"
        ) from None
    return image


def check_image(image: Path) -> None:
    """Its head only: that finds what is no picture, and thousands of them are soon checked."""
    from PIL import Image

    with Image.open(image):
        pass


def _listed(names: Sequence[str]) -> str:
    return f'"{names[0]}" (or {", ".join(names[1:])})'


def _fault(path: Path, number: int, what: str) -> WorkloadError:
    return WorkloadError(f"data file {path.name} line {number} {what}")
