"""What does DDP add to the memory of a step? The buckets of a group of one are those of any group.

Nothing is exchanged, so that times are those of a step without a link; what is held is what each
rank of a larger group holds.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from diagnose.measure.stages.plan import Context
from diagnose.workload import Batch, Network

# A model is wrapped once: every wrapper leaves its hooks and buckets.
_wrapped: dict[int, DistributedDataParallel] = {}


class _Loss(nn.Module):
    """What DDP must wrap to see the whole forward pass."""

    def __init__(self, network: Network, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self._network = network

    def forward(self, batch: Batch) -> Tensor:
        return self._network.loss(self.model, batch)


def loss_under_ddp(context: Context, batch: Batch) -> Tensor:
    """The loss of the job's model, wrapped as torch sets DDP up."""
    network = context.workload.model
    model = context.model(network)
    if id(model) not in _wrapped:
        _wrapped[id(model)] = _wrap(_Loss(network, model), batch, context)
    loss: Tensor = _wrapped[id(model)](batch)
    return loss


def _wrap(loss: _Loss, batch: Batch, context: Context) -> DistributedDataParallel:
    if not dist.is_initialized():
        backend = "nccl" if context.device.kind == "cuda" else "gloo"
        alone = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group(backend, store=alone, rank=0, world_size=1)
    torch.autograd.backward(loss(batch))
    # DDP has to be told of parameters that get no gradient.
    unused = any(each.requires_grad and each.grad is None for each in loss.parameters())
    loss.zero_grad()
    return DistributedDataParallel(loss, find_unused_parameters=unused)
