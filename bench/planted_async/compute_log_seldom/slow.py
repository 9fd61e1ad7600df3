"""Trains a sequence of wide layers and logs the loss and the gradients every twentieth step."""

import argparse
import logging

import torch
from torch import nn

WIDTH, BATCH, DEPTH, EVERY = 256, 64, 6, 20
device = torch.accelerator.current_accelerator()
log = logging.getLogger("wide")


def build_model():
    layers = []
    for _ in range(DEPTH):
        layers += [nn.Linear(WIDTH, WIDTH), nn.Tanh()]
    return nn.Sequential(*layers)


def describe(step, model, loss):
    """What a person wants to see now and then."""
    norms = [p.grad.norm().item() for p in model.parameters()]
    log.info("step %d: loss %.4f, largest gradient %.4f", step, loss.item(), max(norms))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    rows = torch.randn(8, BATCH, WIDTH).to(device)
    model = build_model().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(args.steps):
        batch = rows[step % 8]
        loss = nn.functional.mse_loss(model(batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % EVERY == 0:
            describe(step, model, loss)
    print(f"loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
