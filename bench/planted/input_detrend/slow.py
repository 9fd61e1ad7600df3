"""Learns the heart rate from a pulse signal; the project is in the package beside it.

One of its transforms takes the running median in a loop, and the loader waits for it.
"""

import argparse

import torch
from heartbeat.data import Recordings
from heartbeat.model import make_model
from heartbeat.transforms import Compose, RemoveDrift, Standardize, ToTensor
from torch.nn import functional as F
from torch.utils.data import DataLoader


def train_epoch(model, loader, optimizer):
    model.train()
    for signals, beats in loader:
        loss = F.mse_loss(model(signals), beats)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=0.01)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(2)
    transform = Compose(RemoveDrift(), Standardize(), ToTensor())
    loader = DataLoader(Recordings(1024, transform), args.batch_size, shuffle=True)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    step = 0
    while step < args.steps:
        for loss in train_epoch(model, loader, optimizer):
            print(f"step {step} mse {loss:.6f}")
            step += 1
            if step == args.steps:
                break


if __name__ == "__main__":
    main()
