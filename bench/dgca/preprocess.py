"""Where do train.pt, dev.pt and test.pt come from? Sentences are split first, then given errors.

No sentence is in two of the files, so that a model is never tested on what it was trained on.

  python -m bench.dgca.preprocess --output data --size small
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from bench.train_command import FINE, end_with_code, option, parse_options
from diagnose.commands.shared.arguments import count, count_or_none
from diagnose.workload import WorkloadError

if TYPE_CHECKING:
    from torch import Tensor

SHARES = {"train": 0.8, "dev": 0.1, "test": 0.1}
SHORTEST = 8  # three prompts twice leave one character and its mask


@dataclass(frozen=True)
class Options:
    """What is asked of it."""

    output: Path = option(Path, required=True, metavar="DIR")
    data: Path | None = option(
        Path, "your .txt, .tsv or .jsonl; default: a package's", metavar="FILE"
    )
    rows: int | None = option(count, "in all three files; default: one per sentence", metavar="N")
    size: str = option(text="of the model (default: %(default)s)", default="seed", metavar="NAME")
    length: int | None = option(count, "ids per row (default: that of the size)", metavar="N")
    seed: int = option(count_or_none, default=42, metavar="N")


def main(words: Sequence[str] | None = None) -> int:
    options = parse_options(
        Options,
        words,
        _require_room,
        prog="preprocess",
        description="Make train.pt, dev.pt and test.pt for bench.dgca.train.",
        example="example: python -m bench.dgca.preprocess --output data --size small\n",
    )

    def run() -> int:
        for path, rows, sentences in write_files(
            options.output, options.data, options.rows, options.length, options.seed, options.size
        ):
            print(f"{path}: {rows} rows of {sentences} sentences")
        return FINE

    return end_with_code("preprocess", run, "ask for fewer --rows")


def _require_room(options: Options) -> None:
    if options.length is not None and options.length < SHORTEST:
        raise WorkloadError(
            f"--length {options.length} leaves no room for a character; {SHORTEST} at least"
        )


def write_files(
    output: Path,
    data: Path | None,
    rows: int | None,
    length: int | None,
    seed: int,
    size_name: str = "seed",
) -> list[tuple[Path, int, int]]:
    """Write the three files; for each its path, its rows and the sentences it draws on."""
    # Imported here: a wrong option is answered without torch.
    from bench.dgca.config import DGCAConfig
    from bench.dgca.workload import WORKLOAD
    from diagnose.records.files import write_file

    config = DGCAConfig.from_size(WORKLOAD.size(size_name, "cpu")[1])
    length = config.length if length is None else length
    written = []
    for name, share in SHARES.items():
        wanted = None if rows is None else max(1, round(rows * share))
        kept, sentences = _make_part(name, data, length, config.vocab, wanted, seed)
        path = output / f"{name}.pt"
        try:
            write_file(path, partial(_save, kept))
        except (OSError, RuntimeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise WorkloadError(f"{path} cannot be written: {reason}") from error
        written.append((path, len(kept["input_ids"]), sentences))
    return written


def make_part(name: str, data: Path | None, length: int, vocab: int) -> dict[str, Tensor]:
    """The rows of one of the files as they are written by default, without writing them."""
    return _make_part(name, data, length, vocab, None, Options.seed)[0]


def _make_part(
    name: str, data: Path | None, length: int, vocab: int, rows: int | None, seed: int
) -> tuple[dict[str, Tensor], int]:
    from bench.data import tensors, text

    corpus = text.read(data)
    room = length // 2 - tensors.PROMPT_LENGTH
    sentences = corpus.sentences or tuple(target for _, target in corpus.pairs)
    chosen = split(sorted({each[:room] for each in sentences}), seed)[name]
    part = replace(
        corpus,
        sentences=tuple(each for each in corpus.sentences if each[:room] in chosen),
        pairs=tuple(pair for pair in corpus.pairs if pair[1][:room] in chosen),
    )
    size = len(part) if rows is None else rows
    made = tensors.to_tensors(tensors.make_pairs(part, size, seed), length, vocab)
    return {each: made[each] for each in tensors.INPUTS}, len(chosen)


def _save(tensors: Mapping[str, Tensor], path: Path) -> None:
    import torch

    # Given a path, torch would write the temporary name into the file.
    with path.open("wb") as file:
        torch.save(dict(tensors), file)


def split(sentences: Sequence[str], seed: int) -> dict[str, frozenset[str]]:
    """Each sentence in exactly one part, and no part empty."""
    if len(sentences) < len(SHARES):
        raise WorkloadError(
            f"{len(sentences)} different sentences cannot be split into {', '.join(SHARES)}; "
            "give more with --data"
        )
    order = Random(seed).sample(list(sentences), len(sentences))
    dev, test = (max(1, round(len(order) * SHARES[name])) for name in ("dev", "test"))
    return {
        "train": frozenset(order[dev + test :]),
        "dev": frozenset(order[:dev]),
        "test": frozenset(order[dev : dev + test]),
    }


if __name__ == "__main__":
    sys.exit(main())
