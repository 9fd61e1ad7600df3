"""Two ranks: DistributedDataParallel with accumulation in no_sync, or fully_shard."""

import contextlib
import os
import sys

import torch
import torch.distributed as dist
import traces
from torch.distributed.fsdp import fully_shard


def main(directory, kind):
    traces.seed(dist.get_rank())
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4))
    if kind == "fsdp2":
        mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
        for layer in (model[0], model[2]):
            fully_shard(layer, mesh=mesh)
        trained = fully_shard(model, mesh=mesh)
    else:
        trained = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(trained.parameters(), lr=1e-2)
    losses = []
    for step in range(200):
        optimizer.zero_grad()
        for part in range(2):
            x, y = torch.randn(8, 16), torch.randint(0, 4, (8,))
            quiet = kind == "ddp" and part == 0
            with trained.no_sync() if quiet else contextlib.nullcontext():
                loss = torch.nn.functional.cross_entropy(trained(x), y)
                loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step % 40 == 39:
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            if dist.get_rank() == 0:
                with open(os.path.join(directory, "log.csv"), "a") as log:
                    log.write(f"{step},{mean.item()}\n")
    traces.leave(directory, losses, model)


dist.init_process_group("gloo")
main(*sys.argv[1:])
dist.barrier()
# Threads of gloo may abort the interpreter while it ends, with us or without.
os._exit(0)
