"""How do sentence pairs become a training set? As ReLM's tensors, prepared once and kept on disk.

A row is the source sentence between prompts, followed by one [MASK] per character; the model
writes the corrected sentence into the masks. With P = 3 prompts and n characters:

  input_ids       [CLS]*P + source + [SEP]*P + [MASK]*n, then [PAD]
  attention_mask  1 where input_ids is not [PAD]
  labels          -100 up to the masks, then the target's n characters, then -100
  trg_ref_ids     [CLS]*P + target + [SEP]*P + source, then [PAD]: the other sentence of each half
  block_flag      1 on the 2P prompts; the second P lie behind the source, so their place varies
  error_labels    on the source 1 where it differs from the target, else 0; -100 elsewhere
  candidate_ids   16 per place: those of source character i on it and on mask i, else all [PAD]
"""

from __future__ import annotations

import hashlib
import io
import os
import sys
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Literal

import torch
from torch import Tensor
from torch.utils.data import Dataset

from bench.data import confusion, vocabulary
from bench.data.text import Corpus
from diagnose.records.files import write_bytes
from diagnose.workload import DataSummary, WorkloadError

PROMPT_LENGTH = 3
IGNORED = -100  # torch's cross entropy leaves such labels out
SEED = 42

FORMAT = 3  # raised whenever the same pairs would give other tensors
# What a plain masked language model needs, and what its detector and candidates need besides.
PLAIN_INPUTS = ("input_ids", "attention_mask", "labels")
INPUTS = (*PLAIN_INPUTS, "trg_ref_ids", "block_flag", "error_labels", "candidate_ids")
_FACTS = ("characters", "erroneous")  # per row, for the summary only

Hold = Literal["mmap", "preload"]
Pair = tuple[str, str]

# 16 candidates per place are half of the file, so they and the flags are kept narrow;
# the model widens them on its device.
assert torch.iinfo(torch.int16).max >= vocabulary.SIZE
_NARROW = {"block_flag": torch.int8, "error_labels": torch.int8, "candidate_ids": torch.int16}


class SentencePairs(Dataset[dict[str, Tensor]]):
    """One dict of tensors per row, from a file that is mapped or from memory."""

    def __init__(self, tensors: Mapping[str, Tensor], hold: Hold) -> None:
        self.tensors = {name: tensor for name, tensor in tensors.items() if name in INPUTS}
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
    corpus: Corpus,
    length: int,
    rows: int,
    hold: Hold,
    seed: int = SEED,
    names: Sequence[str] = INPUTS,
    vocab: int = vocabulary.SIZE,
) -> dict[str, Tensor]:
    """The named tensors of the corpus, from the cache if they are there and whole."""
    path = cache_path(corpus, length, rows, seed, vocab)
    if path.exists():
        try:
            return _load(path, hold, names)
        # A damaged file fails in any of these ways, depending on where the damage is.
        except (OSError, RuntimeError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            print(
                f"warning: cache file {path.name} is damaged and is built again "
                f"({type(error).__name__})",
                file=sys.stderr,
            )
    _save(path, to_tensors(make_pairs(corpus, rows, seed), length, vocab))
    return _load(path, hold, names)


def summarize(
    corpus: Corpus, length: int, rows: int, seed: int = SEED, vocab: int = vocabulary.SIZE
) -> DataSummary:
    """What the report says about the data."""
    tensors = prepare(corpus, length, rows, "mmap", seed, PLAIN_INPUTS, vocab)
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


def to_tensors(
    pairs: Sequence[Pair], length: int, vocab: int = vocabulary.SIZE
) -> dict[str, Tensor]:
    """The rows, each (length,) or (length, 16), and two facts per row."""
    room = length // 2 - PROMPT_LENGTH
    if room < 1:
        raise ValueError(f"length {length} leaves no room for a character; use 8 or more")
    encoded = [
        (vocabulary.encode(source[:room], vocab), vocabulary.encode(target[:room], vocab))
        for source, target in pairs
    ]
    places = [_lay_out(source, target) for source, target in encoded]
    rows = {name: _stack([each[name] for each in places], length, name) for name in _FILL}
    frequent = confusion.frequent_characters(target for _, target in pairs)
    sources = {each for source, _ in encoded for each in source}
    table = tabulate_candidates(sources, frequent, vocab)
    tensors = {
        **rows,
        "attention_mask": (rows["input_ids"] != vocabulary.PAD).long(),
        "candidate_ids": table.to(_NARROW["candidate_ids"])[rows["confusable"]],
        "characters": torch.tensor([len(source) for source, _ in pairs]),
        "erroneous": torch.tensor([source != target for source, target in encoded]),
    }
    return {name: tensors[name] for name in INPUTS + _FACTS}


def tabulate_candidates(
    indices: Iterable[int], frequent: Sequence[str], size: int = vocabulary.SIZE
) -> Tensor:
    """(vocabulary, 16): row i holds the candidates of id i; [PAD] in the rows not asked for."""
    table = torch.full((size, confusion.CANDIDATES), vocabulary.PAD)
    for index in set(indices) - {vocabulary.PAD}:
        listed = confusion.list_candidates(index, frequent, size)
        table[index, : len(listed)] = torch.tensor(listed)
    return table


# By what a row is filled up behind its last mask.
_FILL = {
    "input_ids": vocabulary.PAD,
    "labels": IGNORED,
    "trg_ref_ids": vocabulary.PAD,
    "block_flag": 0,
    "error_labels": IGNORED,
    "confusable": vocabulary.PAD,
}


def _lay_out(source: list[int], target: list[int]) -> dict[str, list[int]]:
    """One row without its filling; `confusable` is the character whose candidates a place gets."""
    count = len(source)
    start, middle = [vocabulary.CLS] * PROMPT_LENGTH, [vocabulary.SEP] * PROMPT_LENGTH
    ignored, prompt, none = [IGNORED] * PROMPT_LENGTH, [1] * PROMPT_LENGTH, [0] * PROMPT_LENGTH
    return {
        "input_ids": start + source + middle + [vocabulary.MASK] * count,
        "labels": ignored + [IGNORED] * count + ignored + target,
        "trg_ref_ids": start + target + middle + source,
        "block_flag": prompt + [0] * count + prompt + [0] * count,
        "error_labels": ignored + [int(a != b) for a, b in zip(source, target, strict=True)],
        "confusable": none + source + none + source,
    }


def _stack(rows: list[list[int]], length: int, name: str) -> Tensor:
    filled = [row + [_FILL[name]] * (length - len(row)) for row in rows]
    return torch.tensor(filled, dtype=_NARROW.get(name, torch.int64))


def cache_path(
    corpus: Corpus, length: int, rows: int, seed: int = SEED, vocab: int = vocabulary.SIZE
) -> Path:
    """Named after everything that decides the content, so that nothing stale is ever read."""
    source = [corpus.description, corpus.sha256, confusion.version()]
    parts = [FORMAT, *source, length, rows, seed, vocab]
    key = hashlib.sha256(repr(parts).encode()).hexdigest()
    return cache_folder() / f"{key[:32]}.pt"


def cache_folder() -> Path:
    root = os.environ.get("DIAGNOSE_CACHE") or Path(__file__).parents[2] / ".cache"
    return Path(root) / "data"


def _load(path: Path, hold: Hold, names: Sequence[str]) -> dict[str, Tensor]:
    with zipfile.ZipFile(path) as archive:
        # torch.load does not look at the checksums, and a mapped file is not even read by it.
        if archive.testzip():
            raise zipfile.BadZipFile("a checksum does not match")
    mapped = torch.load(path, mmap=True, weights_only=True)
    tensors = {name: mapped[name] for name in (*names, *_FACTS)}
    if hold == "preload":
        # Only what is asked for comes into memory: a plain model leaves the candidates on disk.
        return {name: tensor.clone() for name, tensor in tensors.items()}
    return tensors


def _save(path: Path, tensors: Mapping[str, Tensor]) -> None:
    content = io.BytesIO()
    torch.save(dict(tensors), content)
    keep_file(path, content)


def keep_file(path: Path, content: io.BytesIO) -> None:
    """Whole or not at all, also if two processes do it at once: the last rename wins."""
    try:
        write_bytes(path, content.getbuffer())
    except OSError as error:
        raise WorkloadError(
            f"the prepared data cannot be kept in {path.parent}: {error.strerror}; "
            "set DIAGNOSE_CACHE to a folder with room that you may write to"
        ) from error
