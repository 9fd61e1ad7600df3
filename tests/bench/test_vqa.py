"""Does the model that sees get its tiles, and does it answer in a batch as it does alone?"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image

from bench.data import vocabulary
from bench.vqa.questions import ASKED, PHOTOGRAPHS, VIEWS, Source, open_views
from bench.vqa.workload import FAMILY as VQA
from bench.vqa.workload import WORKLOAD
from diagnose.workload import Decoding, Encoded, Generator, Question, Size, WorkloadError

TINY = WORKLOAD.sizes["tiny"]
CPU = torch.device("cpu")
TOKENS_PER_TILE = 4  # 56 x 56 pixels, patches of 14, two by two together


@pytest.fixture(scope="module")
def generator() -> Generator:
    return VQA.open_generator(TINY.shape, CPU, seed=1)


@pytest.fixture(scope="module")
def questions() -> list[Question]:
    """One for each view of a photograph."""
    asked = VQA.open_questions(None, 64)
    return list({each.image: each for each in asked}.values())


def ask(image: Path) -> Question:
    return Question("1", "what is it", ("a cat",), image)


def test_photographs_differ_in_format_and_neighbouring_questions_in_photograph(
    questions: list[Question],
) -> None:
    formats = set()
    for question in questions:
        assert question.image is not None
        with Image.open(question.image) as picture:
            formats.add(round(picture.width / picture.height, 1))
    assert len(formats) == len(questions) == len(VIEWS)
    assert {each["photograph"] for each in ASKED} == set(PHOTOGRAPHS)
    asked = VQA.open_questions(None, 64)
    assert len({each.image for each in asked[: len(VIEWS)]}) == len(VIEWS)


def test_a_missing_photograph_is_told_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PHOTOGRAPHS, "stairs", Source("pywt", "PyWavelets", "data/none.npz"))
    with pytest.raises(WorkloadError, match=r"'stairs' is missing; run `pip .* PyWavelets`"):
        VQA.open_questions(None, 1)


@pytest.mark.parametrize(
    ("cap", "tiles"), [(1, 1), (2, 1), (4, 5), (6, 7), (8, 7), (12, 13), (13, 13)]
)
def test_max_crops_is_only_a_cap(
    generator: Generator, tmp_path: Path, cap: int, tiles: int
) -> None:
    """On a 4:3 picture; of several tiles one more is an overview."""
    Image.new("RGB", (640, 480)).save(tmp_path / "a.png")
    encoded = generator.encode(ask(tmp_path / "a.png"), max_crops=cap)
    assert encoded.tiles == tiles
    places = int((encoded.input_ids == vocabulary.MASK).sum())
    assert places == tiles * TOKENS_PER_TILE


@pytest.mark.parametrize("decoding", [Decoding(9), Decoding(9, natural_stop=False)])
def test_answers_in_a_batch_are_those_of_each_question_alone(
    generator: Generator, questions: list[Question], decoding: Decoding
) -> None:
    encoded = [generator.encode(each, max_crops=4) for each in questions]
    batched = generator.generate(generator.collate(encoded), decoding)
    assert batched == [answer(generator, each, decoding) for each in encoded]


def answer(generator: Generator, encoded: Encoded, decoding: Decoding) -> tuple[int, ...]:
    return generator.generate(generator.collate([encoded]), decoding)[0]


def test_the_picture_and_the_cap_matter(generator: Generator, tmp_path: Path) -> None:
    black, white = tmp_path / "black.png", tmp_path / "white.png"
    Image.new("RGB", (640, 480)).save(black)
    Image.new("RGB", (640, 480), "white").save(white)
    tiles = [generator.encode(ask(each)).pixel_values for each in (black, white)]
    assert tiles[0] is not None
    assert tiles[1] is not None
    assert not tiles[0].equal(tiles[1])
    logits = []
    for path in (black, white):
        batch = generator.collate([generator.encode(ask(path))])
        batch.pop("answer_length")
        logits.append(generator.model(**batch).logits[0, -1])
    assert not logits[0].equal(logits[1])


@pytest.mark.parametrize("kind", ["empty", "text", "broken", "cut"])
def test_a_picture_that_cannot_be_read_is_named(
    generator: Generator, tmp_path: Path, kind: str
) -> None:
    contents = {
        "empty": b"",
        "text": b"no picture",
        "broken": b"\x89PNG\r\n\x1a\n broken",
        "cut": open_views()["square"].read_bytes()[:5000],
    }
    path = tmp_path / "a.png"
    path.write_bytes(contents[kind])
    with pytest.raises(WorkloadError, match=r"picture a\.png cannot be read"):
        generator.encode(ask(path))


@pytest.mark.parametrize("cap", [1, 4])
def test_a_synthetic_batch_has_the_tiles_of_its_cap(cap: int) -> None:
    size = Size(3, 16, {**TINY.shape, "max_crops": cap})
    batch = WORKLOAD.synthetic_batch(size, CPU)
    tiles = 1 if cap == 1 else 5
    assert len(batch["pixel_values"]) == 3 * tiles
    assert batch["input_ids"].shape == (3, 16 + tiles * TOKENS_PER_TILE)
    model = WORKLOAD.model.build(size)
    loss = WORKLOAD.model.loss(model, batch)
    loss.backward()  # type: ignore[no-untyped-call]
    assert torch.isfinite(loss)
    reached = [name for name, each in model.named_parameters() if each.grad is not None]
    assert any("vision_tower" in name for name in reached), "the loss also trains what sees"
