"""Does a Molmo2 get its crops and its marks as its own processor makes them, built or from disk?"""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from PIL import Image

from bench.vqa.molmo import MARKS, PATCH, Layout, MolmoCharacters
from bench.vqa.molmo_workload import FAMILY as MOLMO
from bench.vqa.molmo_workload import WORKLOAD
from bench.vqa.questions import WORDS
from bench.vqa.workload import FAMILY as VQA
from diagnose.measure import jobs
from diagnose.workload import Decoding, Generator, Question, Size, WorkloadError
from tests.support.model_directories import END, write_molmo_model, write_text_model

TINY = WORKLOAD.sizes["tiny"]
CPU = torch.device("cpu")
OVERVIEW = 4  # tokens: 56 x 56 pixels, patches of 14, two by two together


@pytest.fixture(scope="module")
def generator() -> Generator:
    return MOLMO.open_generator(TINY.shape, CPU, seed=1)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_molmo_model(tmp_path_factory.mktemp("models") / "my-molmo")


def one_of_each_view() -> list[Question]:
    return list({each.image: each for each in MOLMO.open_questions(None, 64)}.values())


@pytest.mark.parametrize(("cap", "crops"), [(1, 1), (4, 4), (8, 6), (12, 12), (13, 12)])
def test_max_crops_is_a_cap_and_an_overview_comes_on_top(
    generator: Generator, tmp_path: Path, cap: int, crops: int
) -> None:
    Image.new("RGB", (640, 480)).save(tmp_path / "a.png")
    encoded = generator.encode(Question("1", "what", ("x",), tmp_path / "a.png"), max_crops=cap)
    assert encoded.tiles == crops + 1
    rows, columns = encoded.about_picture["image_grids"][0, 2:].tolist()
    patch = MolmoCharacters(TINY.shape["vocab"], WORDS).image_token
    assert encoded.input_ids.tolist().count(patch) == OVERVIEW + rows * columns
    assert len(encoded.about_picture["image_token_pooling"]) == OVERVIEW + rows * columns


@pytest.mark.parametrize("layout", [Layout(), Layout(True, False, False), Layout(False, True)])
def test_the_marks_are_those_of_its_own_processor(layout: Layout) -> None:
    from transformers.models.molmo2.processing_molmo2 import Molmo2Processor

    stands_in = SimpleNamespace(**vars(layout))
    own = Molmo2Processor.replace_image_token(stands_in, {"image_grids": [[2, 2, 3, 4]]}, 0)
    assert "".join(layout.draw([(2, 2), (3, 4)])) == own


def test_answers_in_a_batch_are_those_of_each_question_alone(generator: Generator) -> None:
    encoded = [generator.encode(each, max_crops=12) for each in one_of_each_view()]
    assert len({each.tiles for each in encoded}) > 1, "places of patches count through the batch"
    decoding = Decoding(6, natural_stop=False)
    batched = generator.generate(generator.collate(encoded), decoding)
    alone = [generator.generate(generator.collate([each]), decoding)[0] for each in encoded]
    assert batched == alone
    other = generator.collate([encoded[1], encoded[0]])
    pixels, _ = other["pixel_values"], other.pop("answer_length")
    before = generator.model(**other).logits[1, -1]
    pixels[len(pixels) - encoded[0].tiles :] = 0
    assert not generator.model(**other).logits[1, -1].equal(before), "it looks at its own picture"


def test_a_training_step_reaches_what_sees() -> None:
    size = Size(3, 16, {**TINY.shape, "max_crops": 4})
    rows = WORKLOAD.datasets["questions"](size, None)
    assert WORKLOAD.collate is not None
    for batch in (WORKLOAD.synthetic_batch(size, CPU), WORKLOAD.collate([rows[0], rows[1]])):
        model = WORKLOAD.model.build(size).train()
        WORKLOAD.model.loss(model, batch).backward()  # type: ignore[no-untyped-call]
        reached = [name for name, each in model.named_parameters() if each.grad is not None]
        assert any("vision_tower" in name for name in reached)


@pytest.mark.parametrize("workload", ["vqa", "molmo"])
def test_a_checkpoint_answers_under_both_workloads(checkpoint: Path, workload: str) -> None:
    job = jobs.load(workload, checkpoint)
    assert job.generation is not None
    shape = job.sizes["my-molmo"].shape
    generator = job.generation.open_generator(shape, CPU, dtype=torch.float32, seed=0)
    question = one_of_each_view()[0]
    encoded = generator.encode(question, max_crops=4)
    tokenizer = generator.reader.language.tokenizer  # type: ignore[attr-defined]
    written = tokenizer.decode(encoded.input_ids)
    assert encoded.input_ids[0] == END, "its processor begins with the end mark of the text before"
    # The overview's rows have no marks: so says the checkpoint's processor_config.json.
    assert written.startswith(f"</s><low_res_im_start>{PATCH * OVERVIEW}<im_end><im_start>{PATCH}")
    assert "<im_col>" in written
    batch = generator.collate([encoded, generator.encode(Question("2", "a dog", ("x",)))])
    assert batch["mm_token_type_ids"].sum() == len(encoded.input_ids) - written_text(encoded)
    answers = generator.generate(batch, Decoding(3, natural_stop=False))
    assert [len(each) for each in answers] == [3, 3]


def written_text(encoded: object) -> int:
    ids = encoded.input_ids.tolist()  # type: ignore[attr-defined]
    first = END + 2  # the marks of pictures follow the tokenizer's own four
    return sum(not first <= each < first + len(MARKS) for each in ids)


def test_a_tokenizer_without_its_marks_and_another_family_are_refused(
    checkpoint: Path, tmp_path: Path
) -> None:
    text = write_text_model(tmp_path / "text")
    shape = jobs.load("molmo", checkpoint).sizes["my-molmo"].shape
    with pytest.raises(WorkloadError, match=r"is a qwen2; .* internvl and molmo2 models"):
        VQA.open_generator(shape, CPU, model_directory=text)
    folder = tmp_path / "copy"
    shutil.copytree(checkpoint, folder)
    for path in folder.glob("tokenizer*.json"):
        path.write_text(path.read_text().replace("<im_col>", "<no_col>"))
    with pytest.raises(WorkloadError, match="does not know <im_col>"):
        MOLMO.open_generator(shape, CPU, model_directory=folder)
