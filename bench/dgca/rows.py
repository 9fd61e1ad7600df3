"""Which rows does a step train on? A data file that is checked once, in an order fixed in advance.

The order follows from the seed and the number of the step alone, so that a resumed run reads
exactly what the interrupted one would have read next.
"""

from __future__ import annotations

import hashlib
import pickle
import signal
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Sampler

from bench.data.tensors import IGNORED, INPUTS, SentencePairs
from bench.dgca.arguments import Options
from bench.dgca.config import DGCAConfig
from diagnose.workload import WorkloadError


def ranges(vocab: int) -> Mapping[str, tuple[int, int]]:
    """Name -> the least and the greatest value that means something."""
    return {
        "input_ids": (0, vocab - 1),
        "attention_mask": (0, 1),
        "labels": (IGNORED, vocab - 1),
        "trg_ref_ids": (IGNORED, vocab - 1),
        "block_flag": (0, 1),
        "error_labels": (IGNORED, 1),
        "candidate_ids": (0, vocab - 1),
    }


@dataclass(frozen=True)
class DataFile:
    """The checked tensors of one file."""

    name: str
    tensors: Mapping[str, Tensor]
    fingerprint: str  # of the content; the name and the place of the file do not matter

    def __len__(self) -> int:
        return len(self.tensors["input_ids"])


class BatchedRows(SentencePairs):
    """All rows of a batch with one indexing per tensor."""

    def __getitems__(self, rows: list[int]) -> dict[str, Tensor]:
        index = torch.tensor(rows)
        return {name: tensor[index] for name, tensor in self.tensors.items()}


@dataclass(frozen=True)
class Order(Sampler[list[int]]):
    """The micro-batches of one process, from the first step to the last, across epochs."""

    rows: int
    micro_batch: int
    accumulation: int
    seed: int
    rank: int = 0
    world: int = 1
    first_step: int = 0
    end_step: int = 0

    @property
    def steps_per_epoch(self) -> int:
        """Rows that fill no whole step are left out of this epoch, other ones in the next."""
        return self.rows // self.rows_per_step

    @property
    def rows_per_step(self) -> int:
        return self.world * self.micro_batch * self.accumulation

    def __iter__(self) -> Iterator[list[int]]:
        known, mine = -1, []
        for step in range(self.first_step, self.end_step):
            epoch, place = divmod(step, self.steps_per_epoch)
            if epoch != known:
                known, mine = epoch, self._shuffle(epoch)
            for micro in range(place * self.accumulation, (place + 1) * self.accumulation):
                yield mine[micro * self.micro_batch : (micro + 1) * self.micro_batch]

    def __len__(self) -> int:
        return (self.end_step - self.first_step) * self.accumulation

    def _shuffle(self, epoch: int) -> list[int]:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
        order: list[int] = torch.randperm(self.rows, generator=generator).tolist()
        return order[self.rank :: self.world]


def open_data(path: Path, config: DGCAConfig, preload: bool) -> DataFile:
    """The seven tensors of a prepared file, once everything about them has been checked."""
    try:
        with zipfile.ZipFile(path) as archive:
            if damaged := archive.testzip():
                raise WorkloadError(f"data file {path.name} is damaged in {damaged}; make it again")
            facts = [(each.file_size, each.CRC) for each in archive.infolist()]
        tensors = torch.load(path, mmap=not preload, weights_only=True, map_location="cpu")
    except FileNotFoundError:
        raise WorkloadError(
            f"data file {path} does not exist; `python -m bench.dgca.preprocess` makes one"
        ) from None
    except OSError as error:
        raise WorkloadError(f"data file {path} cannot be read: {error.strerror}") from error
    except (zipfile.BadZipFile, RuntimeError, ValueError, EOFError, pickle.UnpicklingError):
        # Whatever a pickle in it wanted to run has not been run: only tensors are admitted.
        raise WorkloadError(
            f"data file {path.name} is no file of tensors, or it is truncated; "
            "make it again with `python -m bench.dgca.preprocess`"
        ) from None
    _require_tensors(path.name, tensors, config)
    kept = {name: tensors[name] for name in INPUTS}
    return DataFile(path.name, kept, hashlib.sha256(repr(facts).encode()).hexdigest())


def load_batches(
    rows: Mapping[str, Tensor], order: Sampler[list[int]] | list[list[int]], options: Options
) -> DataLoader[Any]:
    """A loader that draws from no random state of the training run."""
    batched = options.form == "optimised"
    return DataLoader(
        # One row at a time, every tensor copied, is the way of the original job.
        BatchedRows(rows, "preload") if batched else SentencePairs(rows, "mmap"),
        batch_sampler=order,
        collate_fn=_keep if batched else None,
        num_workers=options.num_workers,
        prefetch_factor=options.prefetch_factor if options.num_workers else None,
        worker_init_fn=_leave_interrupts_to_the_parent,
        pin_memory=options.device != "cpu" and torch.cuda.is_available(),
        generator=torch.Generator(),
    )


def _keep(batch: Any) -> Any:
    return batch


def _leave_interrupts_to_the_parent(_: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _require_tensors(name: str, tensors: Any, config: DGCAConfig) -> None:
    again = "make it again with `python -m bench.dgca.preprocess`"
    if not isinstance(tensors, dict):
        raise WorkloadError(f"data file {name} holds no dict of tensors; {again}")
    missing = [each for each in INPUTS if not isinstance(tensors.get(each), Tensor)]
    if missing:
        raise WorkloadError(f"data file {name} lacks {', '.join(missing)}; {again}")
    rows = len(tensors["input_ids"])
    if rows == 0:
        raise WorkloadError(f"data file {name} has no rows; {again}")
    for each, (least, most) in ranges(config.vocab).items():
        tensor = tensors[each]
        shape: tuple[int, ...] = (rows, config.length)
        if each == "candidate_ids":
            shape += (config.candidates,)
        if tuple(tensor.shape) != shape:
            raise WorkloadError(
                f"data file {name} has {each} of shape {tuple(tensor.shape)} where this model "
                f"needs {shape}; make it again with --length {config.length}"
            )
        if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
            raise WorkloadError(f"data file {name} has {each} as {tensor.dtype}; {again}")
        low, high = (int(value) for value in tensor.aminmax())
        if low < least or high > most:
            raise WorkloadError(
                f"data file {name} has {each} from {low} to {high} where {least} to {most} is "
                f"possible, so it was made for another vocabulary; {again} and its --size"
            )
    slots = 2 * config.prompt_length
    if not bool((tensors["block_flag"].sum(1) == slots).all()):
        raise WorkloadError(
            f"data file {name} has rows without their {slots} prompt slots; {again}"
        )
