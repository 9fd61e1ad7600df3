"""Trains a network of many small layers; the update goes through them one by one."""

import argparse

import torch
from torch import nn

WIDTH, BATCH, DEPTH = 48, 64, 20
device = torch.accelerator.current_accelerator()


class Deep(nn.Module):
    """Small layers with a norm each."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(DEPTH))

    def forward(self, state):
        for layer, norm in zip(self.layers, self.norms, strict=True):
            state = state + torch.relu(layer(norm(state)))
        return state


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    rows = torch.randn(8, BATCH, WIDTH).to(device)
    wanted = torch.randn(8, BATCH, WIDTH).to(device)
    model = Deep().to(device)
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=1e-3,
        weight_decay=0.05,
        foreach=False,  # culprit: optimizer
    )
    for step in range(args.steps):
        loss = nn.functional.mse_loss(model(rows[step % 8]), wanted[step % 8])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()  # cost: optimizer
    print(f"loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
