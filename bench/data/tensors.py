"""How do sentence pairs become a training set? As ReLM's tensors, prepared once and kept on disk.

A row is the source sentence between prompts, followed by one [MASK] per character; the model
writes the corrected sentence into the masks. With P = 3 prompts and n characters:

  input_ids       [CLS]*P + source + [SEP]*P + [MASK]*n, then [PAD]
  attention_mask  1 where input_ids is not [PAD]
  labels          -100 up to the masks, then the target's n characters, then -100
"""

from __future__ import annotations

import hashlib
import io
import os
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Literal

import torch
from torch import Tensor
from torch.utils.data import Dataset

from bench.data import confusion, vocabulary
from bench.data.text import Corpus
from bench.workload import DataSummary, WorkloadError

PROMPT_LENGTH = 3
IGNORED = -100  # torch's cross entropy leaves such labels out
SEED = 42

FORMAT = 1  # raised whenever the same pairs would give other tensors
INPUTS = ("input_ids", "attention_mask", "labels")
_FACTS = ("characters", "erroneous")  # per row, for the summary only

Hold = Literal["mmap", "preload"]
Pair = tuple[str, str]


class SentencePairs(Dataset[dict[str, Tensor]]):
    """One dict of tensors per row, from a file that is mapped or from memory."""

    def __init__(self, tensors: Mapping[str, Tensor], hold: Hold) -> None:
        self.tensors = {name: tensors[name] for name in INPUTS}
        self.hold = hold

    def __len__(self) -> int:
        return len(self.tensors["input_ids"])

    def __getitem__(self, row: int) -> dict[str, Tensor]:
        rows = {name: tensor[row] for name, tensor in self.tensors.items()}
        if self.hold == "mmap":
            # What the job that this workload follows does: a batch then never points into the file.
            return {name: tensor.clone() for name, tensor in rows.items()}
        return rows


def prepare(
    corpus: Corpus, length: int, rows: int, hold: Hold, seed: int = SEED
) -> dict[str, Tensor]:
    """The tensors of the corpus, from the cache if they are there and whole."""
    path = cache_path(corpus, length, rows, seed)
    if path.exists():
        try:
            return _load(path, hold)
        # A damaged file fails in any of these ways, depending on where the damage is.
        except (OSError, RuntimeError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            print(
                f"warning: cache file {path.name} is damaged and is built again "
                f"({type(error).__name__})",
                file=sys.stderr,
            )
    _save(path, to_tensors(make_pairs(corpus, rows, seed), length))
    return _load(path, hold)


def summarize(corpus: Corpus, length: int, rows: int, seed: int = SEED) -> DataSummary:
    """What the report says about the data."""
    tensors = prepare(corpus, length, rows, "mmap", seed)
    characters = tensors["characters"].double()
    quantiles = torch.quantile(characters, torch.tensor([0.1, 0.5, 0.9, 1.0]).double())
    errors = "given pairs" if corpus.pairs else "generated errors"
    return DataSummary(
        description=f"{corpus.description}, {errors}",
        sha256=corpus.sha256,
        sentences=len(corpus),
        rows=len(characters),
        erroneous_rows=int(tensors["erroneous"].sum()),
        length_quantiles=dict(zip(("p10", "p50", "p90", "max"), quantiles.tolist(), strict=True)),
        padding_share=1 - float(tensors["attention_mask"].double().mean()),
    )


def make_pairs(corpus: Corpus, rows: int, seed: int = SEED) -> list[Pair]:
    """As many pairs as rows: a random choice of a large corpus, a small one several times.

    Every copy of a clean sentence gets errors of its own; given pairs are repeated as they are.
    """
    random = Random(seed)
    order = random.sample(range(len(corpus)), len(corpus))
    places = [order[row % len(order)] for row in range(rows)]
    if corpus.pairs:
        return [corpus.pairs[place] for place in places]
    frequent = confusion.frequent_characters(corpus.sentences)
    targets = (corpus.sentences[place] for place in places)
    return [(confusion.corrupt(target, frequent, random), target) for target in targets]


def to_tensors(pairs: Sequence[Pair], length: int) -> dict[str, Tensor]:
    """The rows, each (length,), and two facts per row."""
    room = length // 2 - PROMPT_LENGTH
    if room < 1:
        raise ValueError(f"length {length} leaves no room for a character; use 8 or more")
    input_ids = torch.full((len(pairs), length), vocabulary.PAD)
    labels = torch.full((len(pairs), length), IGNORED)
    erroneous = torch.zeros(len(pairs), dtype=torch.bool)
    for row, (source, target) in enumerate(pairs):
        wrong, right = vocabulary.encode(source[:room]), vocabulary.encode(target[:room])
        start = [vocabulary.CLS] * PROMPT_LENGTH + wrong + [vocabulary.SEP] * PROMPT_LENGTH
        masks = slice(len(start), len(start) + len(wrong))
        input_ids[row, : masks.start] = torch.tensor(start)
        input_ids[row, masks] = vocabulary.MASK
        labels[row, masks] = torch.tensor(right)
        erroneous[row] = wrong != right
    return {
        "input_ids": input_ids,
        "attention_mask": (input_ids != vocabulary.PAD).long(),
        "labels": labels,
        "characters": torch.tensor([len(source) for source, _ in pairs]),
        "erroneous": erroneous,
    }


def cache_path(corpus: Corpus, length: int, rows: int, seed: int = SEED) -> Path:
    """Named after everything that decides the content, so that nothing stale is ever read."""
    parts = [FORMAT, corpus.description, corpus.sha256, length, rows, seed]
    if corpus.sentences:
        parts.append(confusion.version())
    key = hashlib.sha256(repr(parts).encode()).hexdigest()
    root = os.environ.get("DIAGNOSE_CACHE") or Path(__file__).parents[2] / ".cache"
    return Path(root) / "data" / f"{key[:32]}.pt"


def _load(path: Path, hold: Hold) -> dict[str, Tensor]:
    with zipfile.ZipFile(path) as archive:
        # torch.load does not look at the checksums, and a mapped file is not even read by it.
        if archive.testzip():
            raise zipfile.BadZipFile("a checksum does not match")
    tensors = torch.load(path, mmap=hold == "mmap", weights_only=True)
    return {name: tensors[name] for name in INPUTS + _FACTS}


def _save(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Whole or not at all, also if two processes do it at once: the last rename wins."""
    content = io.BytesIO()
    torch.save(dict(tensors), content)
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as file:
            temporary = file.name
            file.write(content.getbuffer())
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise WorkloadError(
            f"the prepared data cannot be kept in {path.parent}: {error.strerror}; "
            "set DIAGNOSE_CACHE to a folder with room that you may write to"
        ) from error
    finally:
        # After a rename there is nothing left to remove; after any failure there is.
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
