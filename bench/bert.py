"""How fast is the pure encoder? BERT's masked language model on ReLM's spelling correction data.

Random weights: the time of a step does not depend on their values, and nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from bench.data import tensors, text, vocabulary
from diagnose.workload import Batch, DataSummary, Network, Size, Workload

SIZES = {
    # The job of the DGCA-ReLM report: bert-base-chinese at batch 128 on one 24 GB card.
    "seed": Size(
        batch_size=128,
        sequence_length=128,
        shape={"layers": 12, "hidden": 768, "heads": 12, "ffn": 3072, "rows": 20000},
    ),
    # A tenth of a second per training step on two CPU cores.
    "small": Size(
        batch_size=4,
        sequence_length=32,
        shape={"layers": 4, "hidden": 256, "heads": 4, "ffn": 1024, "rows": 4096},
    ),
    # For tests: the vocabulary is all that is left of the cost.
    "tiny": Size(
        batch_size=2,
        sequence_length=32,
        shape={"layers": 2, "hidden": 32, "heads": 2, "ffn": 64, "rows": 64},
    ),
}

# bert-base-chinese has 512 positions whatever the length in use, and they are trained too.
_POSITIONS = 512


def build(size: Size) -> nn.Module:
    # Imported here: transformers takes seconds to import, and most commands never build a model.
    from transformers import BertConfig, BertForMaskedLM

    length = _length(size)
    config = BertConfig(
        vocab_size=vocabulary_of(size),
        num_hidden_layers=size.shape["layers"],
        hidden_size=size.shape["hidden"],
        num_attention_heads=size.shape["heads"],
        intermediate_size=size.shape["ffn"],
        max_position_embeddings=max(_POSITIONS, length),
    )
    model: nn.Module = BertForMaskedLM(config)
    return model


def loss(model: nn.Module, batch: Batch) -> Tensor:
    result: Tensor = model(**batch).loss
    return result


def forward(model: nn.Module, batch: Batch) -> Tensor:
    inputs = {name: tensor for name, tensor in batch.items() if name != "labels"}
    logits: Tensor = model(**inputs).logits
    return logits


def synthetic_batch(size: Size, device: torch.device) -> dict[str, Tensor]:
    """Random characters, no padding, and labels on the second half only, where ReLM has them."""
    length = _length(size)
    generator = torch.Generator().manual_seed(tensors.SEED)
    shape = (size.batch_size, length)
    first, end = vocabulary.FIRST_CHARACTER, vocabulary_of(size)
    input_ids = torch.randint(first, end, shape, generator=generator)
    labels = torch.randint(first, end, shape, generator=generator)
    labels[:, : length // 2] = tensors.IGNORED
    batch = {
        "input_ids": input_ids,
        "attention_mask": torch.ones(shape, dtype=torch.int64),
        "labels": labels,
    }
    return {name: tensor.to(device) for name, tensor in batch.items()}


def describe_data(size: Size, path: Path | None) -> DataSummary:
    vocab = vocabulary_of(size)
    return tensors.summarize(text.read(path), _length(size), size.shape["rows"], vocab=vocab)


def open_pairs(
    size: Size,
    path: Path | None,
    hold: tensors.Hold,
    names: Sequence[str] = tensors.PLAIN_INPUTS,
) -> tensors.SentencePairs:
    vocab = vocabulary_of(size)
    prepared = tensors.prepare(
        text.read(path), _length(size), size.shape["rows"], hold, names=names, vocab=vocab
    )
    return tensors.SentencePairs(prepared, hold)


def vocabulary_of(size: Size) -> int:
    """How many ids there are; a size that does not say has all of bert-base-chinese."""
    return int(size.shape.get("vocab", vocabulary.SIZE))


def _length(size: Size) -> int:
    assert size.sequence_length is not None
    return size.sequence_length


WORKLOAD = Workload(
    name="bert",
    sizes=SIZES,
    model=Network(build=build, loss=loss, forward=forward),
    synthetic_batch=synthetic_batch,
    datasets={
        "mmap": partial(open_pairs, hold="mmap"),
        "preload": partial(open_pairs, hold="preload"),
    },
    describe_data=describe_data,
)
