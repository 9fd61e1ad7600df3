"""What is one rank's replica? The wrapped model, its optimiser, and how it takes a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from diagnose.measure.ranks.scaling.options import Way
from diagnose.measure.ranks.scaling.rank_input import RankInput
from diagnose.workload import Batch, Network

# Adam's step then lies far above the rounding of weights near 1, and far below their size.
PROOF_LEARNING_RATE = 1e-3
# Exact in every precision; small gradients of float16 losses lie above its smallest numbers then.
FLOAT16_SCALE = 2.0**10

Hook = Callable[[Any, Any], torch.futures.Future[Tensor]]  # from a state and a bucket
# Gradients are exchanged as they are, or narrower.
HOOKS: dict[str, Hook] = {
    "": default_hooks.allreduce_hook,
    "float16": default_hooks.fp16_compress_hook,
    "bfloat16": default_hooks.bf16_compress_hook,
}


class LossOf(nn.Module):
    """From a batch to its loss: what DDP must wrap to see the whole forward pass.

    A workload's loss may read attributes of its model, which a wrapped model hides.
    """

    def __init__(self, network: Network, model: nn.Module, low: torch.dtype | None = None) -> None:
        super().__init__()
        self.model = model
        self._network = network
        self._low = low  # the dtype of an autocast of its own

    def forward(self, batch: Batch) -> Tensor:
        with self._autocast():
            loss = self._network.loss(self.model, batch)
        if not isinstance(loss, Tensor):
            raise TypeError(
                f"the workload's loss returned a {type(loss).__name__}; it must return one tensor"
            )
        # What a GradScaler would settle at is not known here; unscaled, small gradients vanish.
        return loss * FLOAT16_SCALE if self._low is torch.float16 else loss

    def _autocast(self) -> AbstractContextManager[object]:
        if self._low is None:  # one around it still holds
            return nullcontext()
        return torch.autocast(next(self.model.parameters()).device.type, dtype=self._low)


@dataclass(frozen=True)
class RankLab:
    """Where a way to train is tried: a job on this rank's device, among the ranks of a group."""

    build: Callable[[], LossOf]  # the same weights on every rank, on the device
    # So many micro-batches of so many samples, this rank's own; the same whenever asked.
    batches: Callable[[int, int], Sequence[Batch]]
    batch_size: int  # of one rank
    seed: int
    group: dist.ProcessGroup
    needs_find_unused: bool = False  # some parameters get no gradient from this job
    # This rank's share of the data through so many loader processes; None: there is no dataset.
    load: Callable[[int], RankInput] | None = None

    @property
    def rank(self) -> int:
        return dist.get_rank(self.group)


def find_unused(loss: LossOf, batch: Batch) -> list[str]:
    """The trainable parameters that a backward pass leaves without a gradient."""
    torch.autograd.backward(loss(batch))
    named = [(name, each) for name, each in loss.named_parameters() if each.requires_grad]
    unused = [name for name, each in named if each.grad is None]
    loss.zero_grad()
    return unused


class BucketLog:
    """A communication hook that counts what it passes on. Never used while time is taken."""

    def __init__(self) -> None:
        self.nbytes: list[int] = []  # of each all-reduce, in their order
        self.buffers: dict[int, int] = {}  # storage address -> bytes

    def clear(self) -> None:
        self.nbytes.clear()
        self.buffers.clear()

    def around(self, hook: Hook) -> Hook:
        # A lambda, because torch reads a hook's annotations and refuses what it does not know.
        return lambda state, bucket: self._pass_on(hook, state, bucket)

    def _pass_on(self, hook: Hook, state: Any, bucket: Any) -> torch.futures.Future[Tensor]:
        self.nbytes.append(bucket.buffer().nbytes)
        self.buffers.update(_storage(bucket.buffer()))
        return hook(state, bucket)


class Replica:
    """One rank's share of one way to train.

    With a learning rate of 0, a step does all of its work and changes nothing: it can be timed
    for as long as it takes, and the ranks stay equal.
    """

    def __init__(
        self, lab: RankLab, way: Way, *, learning_rate: float = 0.0, log: BucketLog | None = None
    ) -> None:
        if lab.batch_size % way.split:
            raise ValueError(
                f"a batch of {lab.batch_size} cannot be divided by {way.split}; "
                f"choose a --batch-size that can"
            )
        self.samples_per_step = lab.batch_size // way.split * way.passes
        self._way = way
        self._batches: Sequence[Batch] = ()
        self._input: RankInput | None = None
        if way.workers is None:
            self._batches = lab.batches(way.passes, lab.batch_size // way.split)
        else:
            assert lab.load is not None
            self._input = lab.load(way.workers)
        self._log = log
        self._loss = lab.build().train()
        self._wrapped = _wrap(self._loss, lab, way, log)
        self._optimizer = _optimize(self._wrapped, lab, way, learning_rate)

    def step(self) -> None:
        """Every pass, then the optimiser."""
        self.run_passes()
        self._optimizer.step()
        self._optimizer.zero_grad()

    def drain(self) -> None:
        if self._input is not None:
            self._input.drain()

    def settle(self) -> None:
        if self._input is not None:
            self._input.settle()

    def run_passes(self) -> None:
        source = self._input
        batches = self._batches if source is None else [source.loaded()]
        last = len(batches) - 1
        for index, batch in enumerate(batches):
            quiet = index < last and self._way.no_sync != "nothing"
            with self._silence(quiet and self._way.no_sync == "forward and backward"):
                loss = self._wrapped(batch) / len(batches)
                with self._silence(quiet and self._way.no_sync == "backward"):
                    torch.autograd.backward(loss)

    def _silence(self, wanted: bool) -> AbstractContextManager[None]:
        if not wanted:
            return nullcontext()
        assert isinstance(self._wrapped, DistributedDataParallel)
        return self._wrapped.no_sync()

    def gradients(self) -> Tensor:
        """Of one optimiser step's passes, after the exchange."""
        self._optimizer.zero_grad()
        self.run_passes()
        found = [
            torch.zeros_like(each) if each.grad is None else each.grad.detach().clone()
            for each in self._trained()
        ]
        self._optimizer.zero_grad()
        return torch.cat([_whole(each).reshape(-1) for each in found])

    def updates(self) -> Tensor:
        """How far one step moves every weight, in units of the learning rate."""
        before = self._weights()
        self.step()
        return (self._weights() - before) / PROOF_LEARNING_RATE

    def held_bytes(self) -> int:
        """What this rank keeps between two passes: weights, gradients, buckets and state."""
        if self._log:
            self._log.clear()  # DDP may have replaced its buckets since
        self.run_passes()
        self._optimizer.step()
        tensors = [*self._trained(), *(e.grad for e in self._trained() if e.grad is not None)]
        state = getattr(self._optimizer, "optim", self._optimizer).state
        tensors += [v for each in state.values() for v in each.values() if isinstance(v, Tensor)]
        storages = dict(self._log.buffers) if self._log else {}
        for each in tensors:
            storages.update(_storage(each))
        self._optimizer.zero_grad()
        return sum(storages.values())

    def _trained(self) -> list[nn.Parameter]:
        return [each for each in self._loss.parameters() if each.requires_grad]

    def _weights(self) -> Tensor:
        whole = [_whole(each.detach()).reshape(-1) for each in self._trained()]
        return torch.cat(whole).clone()


def _wrap(loss: LossOf, lab: RankLab, way: Way, log: BucketLog | None) -> nn.Module:
    if way.shard == "model":
        return _shard(loss, lab)
    wrapped = DistributedDataParallel(
        loss,
        process_group=lab.group,
        bucket_cap_mb=way.bucket_cap_mb,
        gradient_as_bucket_view=way.bucket_view,
        static_graph=way.static_graph,
        find_unused_parameters=way.find_unused or lab.needs_find_unused,
    )
    # Without a hook torch exchanges gradients by itself, which is what a usual job does.
    if log is not None:
        wrapped.register_comm_hook(lab.group, log.around(HOOKS[way.compress]))
    elif way.compress:
        wrapped.register_comm_hook(lab.group, HOOKS[way.compress])
    return wrapped


def _shard(loss: LossOf, lab: RankLab) -> nn.Module:
    """Layer by layer, so that one layer's weights can arrive while another computes."""
    mesh = DeviceMesh.from_group(lab.group, next(loss.parameters()).device.type)
    layers = [each for each in loss.modules() if isinstance(each, nn.ModuleList)]
    for layer in (layer for each in layers for layer in each):
        fully_shard(layer, mesh=mesh)
    fully_shard(loss, mesh=mesh)
    return loss


def _optimize(
    wrapped: nn.Module, lab: RankLab, way: Way, learning_rate: float
) -> torch.optim.Optimizer:
    trained = [each for each in wrapped.parameters() if each.requires_grad]
    if way.shard == "optimizer":
        return ZeroRedundancyOptimizer(
            trained, torch.optim.AdamW, process_group=lab.group, lr=learning_rate
        )
    return torch.optim.AdamW(trained, lr=learning_rate)


def _whole(tensor: Tensor) -> Tensor:
    """Of a sharded tensor all shards: every rank must ask at the same time."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _storage(tensor: Tensor) -> dict[int, int]:
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    storage = local.untyped_storage()
    return {storage.data_ptr(): storage.nbytes()}
