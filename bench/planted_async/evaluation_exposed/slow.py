"""Trains a regression and looks at the whole validation set after every second step."""

import argparse

import torch
from torch import nn

FEATURES, WIDTH, BATCH = 128, 128, 64
VALIDATION, EVERY = 6, 2
device = torch.accelerator.current_accelerator()


def build_model():
    return nn.Sequential(
        nn.Linear(FEATURES, WIDTH),
        nn.GELU(),
        nn.Linear(WIDTH, WIDTH),
        nn.GELU(),
        nn.Linear(WIDTH, WIDTH),
        nn.GELU(),
        nn.Linear(WIDTH, 1),
    )


def make_rows(batches):
    rows = torch.randn(batches, BATCH, FEATURES)
    return rows.to(device), rows.square().mean(2, keepdim=True).to(device)


@torch.no_grad()
def validate(model, rows, wanted):
    """The mean error over all validation batches, kept on the device."""
    model.eval()
    errors = [(model(r) - w).abs().mean() for r, w in zip(rows, wanted, strict=True)]
    model.train()
    return torch.stack(errors).mean()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    training, validation = make_rows(8), make_rows(VALIDATION)
    model = build_model().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    best = torch.full((), float("inf"), device=device)
    for step in range(args.steps):
        rows, wanted = training[0][step % 8], training[1][step % 8]
        loss = nn.functional.mse_loss(model(rows), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % EVERY == 0:  # culprit: evaluation
            best = torch.minimum(best, validate(model, *validation))  # cost: evaluation
    print(f"loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
