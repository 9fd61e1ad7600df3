"""Trains several tasks at once on several ranks (torchrun); each task's figures are averaged.

torchrun --nproc-per-node 2 slow.py --tasks 24
"""

import argparse

import torch
import torch.distributed as dist
from tasks import TaskData
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel


class SharedModel(nn.Module):
    """One body, a head for each task."""

    def __init__(self, features, width, tasks):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(features, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
        )
        self.heads = nn.Linear(width, tasks)

    def forward(self, rows):
        return self.heads(self.body(rows))


class Figures:
    """The loss and the error of every task, over all ranks."""

    def __init__(self, tasks):
        self.tasks = tasks
        self.latest = {}

    def update(self, predicted, wanted):
        error = (predicted.detach() - wanted).abs().mean(0)
        square = (predicted.detach() - wanted).square().mean(0)
        for task in range(self.tasks):
            self.latest[f"error_{task}"] = self.average(error[task])
            self.latest[f"loss_{task}"] = self.average(square[task])

    @staticmethod
    def average(value):
        value = value.clone()
        dist.all_reduce(value)  # culprit: communication
        return value.item() / dist.get_world_size()

    @property
    def worst(self):
        return max(self.latest[f"error_{task}"] for task in range(self.tasks))


def train(args):
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(SharedModel(128, args.width, args.tasks))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    data = TaskData(args.batch_size, 128, args.tasks, seed=rank)
    figures = Figures(args.tasks)
    for step in range(args.steps):
        rows, wanted = data.batch(step)
        predicted = model(rows)
        loss = F.mse_loss(predicted, wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        figures.update(predicted, wanted)
        if rank == 0:
            print(f"step {step} loss {loss.item():.6f} worst error {figures.worst:.4f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--tasks", type=int, default=24)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--batch-size", type=int, default=384)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    train(args)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
