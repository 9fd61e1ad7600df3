"""Compares pairs of pictures that are kept as the network wants them."""

import argparse

import torch
from torch import nn
from torch.nn import functional as F


class Trainer:
    def __init__(self, model, batches, device="cpu", lr=0.01):
        self.model = model.to(device)
        self.batches = batches
        self.device = device
        self.optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)

    def prepare(self, batch):
        return [view.to(self.device) for view in (batch["left"], batch["right"])]

    def training_step(self, batch):
        left, right = self.prepare(batch)
        loss = F.mse_loss(self.model(left), self.model(right).detach() + 1)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def fit(self, steps):
        for step in range(steps):
            loss = self.training_step(self.batches[step % len(self.batches)])
            print(f"step {step} loss {loss:.6f}")


def make_batches(count, size=48, pixels=192):
    return [
        {
            name: torch.randn(size, pixels, pixels, 3, dtype=torch.float64)
            .permute(0, 3, 1, 2)
            .to(torch.float32)
            .contiguous()
            for name in ("left", "right")
        }
        for _ in range(count)
    ]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(2)
    # Patches of 8 x 8 and a pooled classifier: the pictures are large, the network is not.
    model = nn.Sequential(
        nn.Conv2d(3, 16, kernel_size=8, stride=8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(256, 10),
    )
    Trainer(model, make_batches(2)).fit(args.steps)


if __name__ == "__main__":
    main()
