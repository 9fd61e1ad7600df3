"""What does DDP add to the memory of a step? The buckets of a group of one are those of any group.

Nothing is exchanged, so that times are those of a step without a link; what is held is what each
rank of a larger group holds.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from diagnose.measure.ranks.scaling.replica import LossOf
from diagnose.measure.stages.plan import Context
from diagnose.workload import Batch

# A model is wrapped once: every wrapper leaves its hooks and buckets.
_wrapped: dict[int, DistributedDataParallel] = {}


def loss_under_ddp(context: Context, batch: Batch) -> Tensor:
    """The loss of the job's model, wrapped as torch sets DDP up."""
    network = context.workload.model
    model = context.model(network)
    if id(model) not in _wrapped:
        _wrapped[id(model)] = _wrap(LossOf(network, model), batch, context)
    loss: Tensor = _wrapped[id(model)](batch)
    return loss


def _wrap(loss: LossOf, batch: Batch, context: Context) -> DistributedDataParallel:
    if not dist.is_initialized():
        backend = "nccl" if context.device.kind == "cuda" else "gloo"
        alone = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group(backend, store=alone, rank=0, world_size=1)
    torch.autograd.backward(loss(batch))
    # DDP has to be told of parameters that get no gradient.
    unused = any(each.requires_grad and each.grad is None for each in loss.parameters())
    loss.zero_grad()
    return DistributedDataParallel(loss, find_unused_parameters=unused)
