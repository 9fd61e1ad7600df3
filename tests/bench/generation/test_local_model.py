"""Is a model on disk the one that answers, and is every directory that cannot be used refused?"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from bench.textgen.workload import FAMILY as TEXTGEN
from bench.vqa.workload import FAMILY as VQA
from diagnose.measure import jobs
from diagnose.workload import Decoding, Question, WorkloadError
from tests.support.model_directories import END, PAD, write_text_model, write_vision_model

CPU = torch.device("cpu")
ASKED = [
    Question("1", "what is this", ("a cat",)),
    Question("2", "who are you and what is the dog in the picture", ("no",)),
]


@pytest.fixture(scope="module")
def text_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text_model(tmp_path_factory.mktemp("models") / "my-text", chat=True)


@pytest.fixture(scope="module")
def vision_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_vision_model(tmp_path_factory.mktemp("models") / "my-vision")


def test_a_text_model_answers_in_its_own_words(text_model: Path) -> None:
    generator = TEXTGEN.open_generator({}, CPU, model_directory=text_model)
    encoded = [generator.encode(each) for each in ASKED]
    assert generator.decode(encoded[0].input_ids.tolist()) == "what is this ?", "as a dialogue"
    batch = generator.collate(encoded)
    assert batch["input_ids"][0, 0] == PAD
    decoding = Decoding(24)
    batched = generator.generate(batch, decoding)
    single = [generator.generate(generator.collate([each]), decoding)[0] for each in encoded]
    assert batched == single
    assert all(END not in each for each in batched), "the end mark is not part of an answer"
    fixed = generator.generate(batch, Decoding(24, natural_stop=False))
    assert [len(each) for each in fixed] == [24, 24]


def test_its_own_end_mark_ends_an_answer(text_model: Path) -> None:
    generator = TEXTGEN.open_generator({}, CPU, model_directory=text_model)
    # Whatever it would rather say: from now on it only knows the end.
    with torch.no_grad():
        generator.model.get_parameter("model.norm.weight").zero_()
        generator.model.register_forward_hook(prefer_the_end)
    batch = generator.collate([generator.encode(each) for each in ASKED])
    assert generator.generate(batch, Decoding(8)) == [(), ()]
    assert generator.generate(batch, Decoding(3, natural_stop=False)) == [(END,) * 3] * 2


def prefer_the_end(_module: object, _inputs: object, output: object) -> None:
    output.logits[..., END] += 1  # type: ignore[attr-defined]


def test_a_vision_model_looks_at_its_picture(vision_model: Path) -> None:
    shape = jobs.load("vqa", vision_model).sizes["my-vision"].shape
    generator = VQA.open_generator(shape, CPU, model_directory=vision_model)
    question = VQA.open_questions(None, 1)[0]
    encoded = generator.encode(question, max_crops=4)
    blind = generator.encode(Question("2", question.prompt, ("x",)))
    assert encoded.tiles > 1
    newline = 1  # between the picture and the question
    assert len(encoded.input_ids) == len(blind.input_ids) + newline + 4 * encoded.tiles
    decoding = Decoding(5, natural_stop=False)
    both = generator.generate(generator.collate([blind, encoded]), decoding)
    assert both[1] == generator.generate(generator.collate([encoded]), decoding)[0]


def test_a_workload_of_a_directory_has_its_shape(text_model: Path) -> None:
    found = jobs.load("textgen", text_model)
    assert list(found.sizes) == ["my-text"]
    size = found.sizes["my-text"]
    config = json.loads((text_model / "config.json").read_text())
    assert size.shape["hidden"] == config["hidden_size"]
    assert found.model.build(size).state_dict().keys()
    with pytest.raises(WorkloadError, match="no size 'tiny'; it has my-text"):
        found.size("tiny", "cpu")
    with pytest.raises(WorkloadError, match="bert builds its own model"):
        jobs.load("bert", text_model)
    with pytest.raises(WorkloadError, match="is a qwen2; workloads about pictures take internvl"):
        VQA.open_generator(size.shape, CPU, model_directory=text_model)


def remove(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).unlink()


def write(name: str, text: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(text)


def pickle_weights(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def lose_a_tensor(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def become_a_file(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.touch()


def cut_weights(folder: Path) -> None:
    os.truncate(folder / "model.safetensors", 1000)


def ask_for_code(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "evil", "auto_map": {"AutoModelForCausalLM": "evil.Model"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "evil.py").write_text("raise SystemExit('it ran')")


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (shutil.rmtree, "does not exist"),
        (become_a_file, "cannot be read: Not a directory"),
        (remove("config.json"), "has no config.json"),
        (write("config.json", "{"), "malformed JSON"),
        (write("config.json", "{}"), "names no model_type"),
        (remove("model.safetensors"), "has no *.safetensors"),
        (pickle_weights, "has pickled weights (pytorch_model.bin), which can run any code"),
        (cut_weights, "cannot be loaded: SafetensorError"),
        (lose_a_tensor, "1 tensors are missing, the first is model.norm.weight"),
        (remove("tokenizer.json"), "has no tokenizer"),
        (write("tokenizer.json", "{"), "cannot be loaded"),
        (write("generation_config.json", "{"), "cannot be loaded"),
        (ask_for_code, "cannot be loaded"),
    ],
)
def test_a_directory_that_cannot_be_used_is_refused(
    text_model: Path, tmp_path: Path, damage: Callable[[Path], object], complaint: str
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(text_model, folder)
    damage(folder)
    with pytest.raises(WorkloadError) as raised:
        TEXTGEN.open_generator({}, CPU, model_directory=folder)
    assert complaint in str(raised.value)
    assert "\n" not in str(raised.value)
