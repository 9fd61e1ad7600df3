"""Who else trains this model? One process, or the others that torchrun started."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from diagnose.workload import WorkloadError


@dataclass(frozen=True)
class Ranks:
    """This process among all; alone, every agreement is immediate.

    What is agreed here is small and lives in host memory, so it goes through a gloo group of its
    own even where gradients go through NCCL: no device has to be waited for.
    """

    rank: int = 0
    world: int = 1
    control: dist.ProcessGroup | None = None

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def gather(self, value: Any) -> list[Any]:
        """The value of every process, in the order of their ranks."""
        if self.control is None:
            return [value]
        values: list[Any] = [None] * self.world
        dist.all_gather_object(values, value, group=self.control)
        return values

    def any(self, flag: bool) -> bool:
        """Whether the flag is up anywhere: all must stop after the same step, or all hang."""
        if self.control is None:
            return flag
        flags = torch.tensor([flag], dtype=torch.int32)
        dist.all_reduce(flags, op=dist.ReduceOp.MAX, group=self.control)
        return bool(flags.item())


@contextmanager
def join_ranks(device: torch.device) -> Iterator[Ranks]:
    """The processes of torchrun for as long as the block lasts."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        yield Ranks()
        return
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield Ranks(dist.get_rank(), world, dist.new_group(backend="gloo"))
    finally:
        dist.destroy_process_group()


def choose_device(name: str | None) -> torch.device:
    """The device asked for; under torchrun each process of a machine takes a card of its own."""
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
    except RuntimeError:
        raise WorkloadError(f"there is no device '{name}'; use cpu, cuda or cuda:0") from None
    if device.type not in ("cpu", "cuda"):
        raise WorkloadError(f"training runs on cpu or cuda, not on '{device.type}'")
    if device.type == "cpu":
        return device
    index = int(os.environ.get("LOCAL_RANK", "0")) if device.index is None else device.index
    if index >= torch.cuda.device_count():
        raise WorkloadError(
            f"cuda:{index} is asked for but {torch.cuda.device_count()} CUDA devices are visible; "
            "start fewer processes or use --device cpu"
        )
    torch.cuda.set_device(index)
    return torch.device("cuda", index)
