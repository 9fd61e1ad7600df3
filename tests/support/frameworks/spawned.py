"""Two ranks that mp.spawn starts."""

import sys

import kept
import torch
import torch.distributed as dist
import torch.multiprocessing


def train(rank, file):
    kept.seed()
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    inner = kept.classifier()
    model = torch.nn.parallel.DistributedDataParallel(inner)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(80):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 16) + rank).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    kept.leave(losses, inner, rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.spawn(train, (sys.argv[1],), 2)
