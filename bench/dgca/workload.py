"""Why is the full corrector slow? DGCA as its authors first wrote it, beside its plain encoder."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from random import Random

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from bench import bert
from bench.data import confusion, tensors, vocabulary
from bench.dgca.config import GRADIENT_NORM_MOST, DGCAConfig
from bench.dgca.loss import compute_loss
from bench.dgca.masking import mask_through_tokenizer, prepare_batch
from bench.dgca.model import DGCA, ORIGINAL, Output
from diagnose.workload import Batch, Network, Size, Treatment, Workload

SIZES = {
    # The job of the DGCA-ReLM report: 128.87 million parameters at batch 128 on one 24 GB card.
    "seed": bert.SIZES["seed"],
    # For a CPU, where the vocabulary dominates: its cost grows with batch x length, that of the
    # prompt loop with batch^2 x length. So a vocabulary of the common characters, and wide
    # batches of short sentences; those of five to seven characters still differ in length.
    "small": Size(
        batch_size=64,
        sequence_length=20,
        shape={
            "layers": 1,
            "hidden": 256,
            "heads": 4,
            "ffn": 1024,
            "rows": 4096,
            "vocab": vocabulary.COMMON_SIZE,
        },
    ),
    # For several ranks on the cores of one CPU: gradients as large as the step is short, and more
    # of them than one bucket of 25 MiB holds.
    "ranks": Size(
        batch_size=4,
        sequence_length=20,
        shape={
            "layers": 2,
            "hidden": 384,
            "heads": 6,
            "ffn": 1536,
            "rows": 4096,
            "vocab": vocabulary.COMMON_SIZE,
        },
    ),
    # For tests: the vocabulary is all that is left of the cost.
    "tiny": Size(
        batch_size=4,
        sequence_length=32,
        shape={"layers": 2, "hidden": 32, "heads": 2, "ffn": 64, "rows": 64},
    ),
}


def build(size: Size) -> nn.Module:
    """In the original form: it is the patient."""
    return DGCA(DGCAConfig.from_size(size), ORIGINAL)


def loss(model: nn.Module, batch: Batch) -> Tensor:
    assert isinstance(model, DGCA)
    masked = prepare_batch(batch, mask_through_tokenizer)
    output = model(masked)
    return compute_loss(output, masked, model.config).total


def forward(model: nn.Module, batch: Batch) -> Output:
    output: Output = model(batch)
    return output


def backbone_loss(model: nn.Module, batch: Batch) -> Tensor:
    return bert.loss(model, {name: batch[name] for name in tensors.PLAIN_INPUTS})


def backbone_forward(model: nn.Module, batch: Batch) -> Tensor:
    return bert.forward(model, {name: batch[name] for name in tensors.PLAIN_INPUTS})


def synthetic_batch(size: Size, device: torch.device) -> dict[str, Tensor]:
    """Random sentences with errors; their lengths differ, because then the prompts' places do."""
    assert size.sequence_length is not None
    random = Random(tensors.SEED)
    room = size.sequence_length // 2 - tensors.PROMPT_LENGTH
    ideographs = range(ord(vocabulary.FIRST_HAN), ord(vocabulary.LAST_HAN) + 1)
    pairs = []
    for _ in range(size.batch_size):
        count = random.randint(max(1, room // 2), room)
        target = "".join(map(chr, random.choices(ideographs, k=count)))
        pairs.append((confusion.corrupt(target, (), random), target))
    rows = tensors.to_tensors(pairs, size.sequence_length, bert.vocabulary_of(size))
    return {name: rows[name].to(device) for name in tensors.INPUTS}


def open_dev_rows(size: Size, data: Path | None) -> Dataset[dict[str, Tensor]]:
    """What bench.dgca.preprocess writes to dev.pt: a tenth of the sentences, one row for each."""
    from bench.dgca.preprocess import make_part

    assert size.sequence_length is not None
    rows = make_part("dev", data, size.sequence_length, bert.vocabulary_of(size))
    return tensors.SentencePairs(rows, "preload")


def treatment() -> Treatment:
    from bench.optimizations.catalogue import TREATMENT

    return TREATMENT


WORKLOAD = Workload(
    name="dgca",
    sizes=SIZES,
    model=Network(build=build, loss=loss, forward=forward),
    backbone=Network(build=bert.build, loss=backbone_loss, forward=backbone_forward),
    synthetic_batch=synthetic_batch,
    datasets={
        "mmap": partial(bert.open_pairs, hold="mmap", names=tensors.INPUTS),
        "preload": partial(bert.open_pairs, hold="preload", names=tensors.INPUTS),
    },
    evaluation_rows=open_dev_rows,
    describe_data=bert.describe_data,
    gradient_norm_most=GRADIENT_NORM_MOST,
    treatment=treatment,
)
