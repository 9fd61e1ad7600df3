"""What is evaluated? The model, its questions, and all that makes two evaluations comparable."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from diagnose.measure import jobs
from diagnose.measure.batch_size.memory import available_bytes, guard
from diagnose.measure.evaluation.answering import NoRoom, tell_need
from diagnose.measure.evaluation.directory import hash_questions, read_config
from diagnose.measure.machine.device import Device
from diagnose.measure.machine.out_of_memory import is_out_of_memory, read_asked_for
from diagnose.measure.words import one_sentence
from diagnose.records.evaluation_options import EvaluationOptions
from diagnose.records.header import Setting
from diagnose.workload import Decoding, Generator, Question, WorkloadError

# Of the questions that the project brings: enough for a figure, few enough to wait for.
BUILT_IN_SAMPLES = 64


@dataclass(frozen=True)
class Evaluation:
    """Everything that is needed to begin."""

    generator: Generator
    questions: list[Question]
    decoding: Decoding
    batch_size: int
    shape: Mapping[str, int]
    settings: dict[str, Setting]  # whatever may change an answer, so not the batch size


def open_evaluation(options: EvaluationOptions, device: Device, sharing: int = 1) -> Evaluation:
    """WorkloadError if the model or the data cannot be used, NoRoom if there is no memory for it.

    `sharing` ranks divide a host.
    """
    model = None if options.model is None else Path(options.model)
    data = None if options.data is None else Path(options.data)
    job = jobs.load(options.workload, model)
    if job.generation is None:
        raise WorkloadError(f"workload {job.name} writes no answers; use textgen, vqa or molmo")
    size_name, size = job.size(options.size, device.kind)
    most = options.num_samples or (BUILT_IN_SAMPLES if data is None else sys.maxsize)
    questions = job.generation.open_questions(data, most)
    dtype = choose_dtype(options.dtype, model)
    # On the CPU memory that runs out must be an error that can be answered, not a kill.
    guard(device, available_bytes(device, sharing).value)
    try:
        generator = job.generation.open_generator(
            size.shape, device.torch, dtype=dtype, seed=options.seed
        )
    except Exception as error:
        if not is_out_of_memory(error, torch.OutOfMemoryError):
            raise
        name = f"the built-in model '{size_name}'" if model is None else _weigh(model)
        need = tell_need(read_asked_for(error))
        raise NoRoom(f"{name} cannot be loaded as {_name(dtype)}: it needs {need}") from None
    settings: dict[str, Setting] = {
        "workload": job.name,
        "size": size_name if model is None else None,
        "model": None if model is None else model.resolve().name,
        "model_sha256": None if model is None else _hash_model(model),
        "data": None if data is None else data.name,
        "num_samples": len(questions),
        "data_sha256": hash_questions(questions),
        "max_new_tokens": options.max_new_tokens,
        "dtype": _name(dtype),
        "device": device.kind,
        "seed": options.seed,
    }
    decoding = Decoding(max_new_tokens=options.max_new_tokens)
    batch_size = options.batch_size or size.batch_size
    return Evaluation(generator, questions, decoding, batch_size, size.shape, settings)


def choose_dtype(name: str, model: Path | None) -> torch.dtype:
    """`auto` is what the weights on disk were saved in; random ones are made in float32."""
    if name == "auto":
        config = {} if model is None else read_config(model)
        name = config.get("dtype") or config.get("torch_dtype") or "float32"
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise WorkloadError(f"the model's config.json names no dtype of torch: '{name}'")
    return dtype


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _weigh(directory: Path) -> str:
    nbytes = sum(path.stat().st_size for path in directory.glob("*.safetensors"))
    return f"the model in {directory}, {nbytes / 1e6:.1f} MB on disk,"


def _hash_model(directory: Path) -> str:
    """Of the configuration, and of names and sizes: reading all weights would take minutes."""
    read_config(directory)
    digest = hashlib.sha256((directory / "config.json").read_bytes())
    for path in sorted(directory.iterdir()):
        digest.update(f"{path.name} {path.stat().st_size}\n".encode())
    return digest.hexdigest()


def in_one_line(error: Exception) -> str:
    """A loader worker wraps what it raises into its traceback; other words are for the user."""
    text = str(error)
    return one_sentence(text) if "\n" in text else text
