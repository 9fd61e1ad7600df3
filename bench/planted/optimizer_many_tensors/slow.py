"""Recommends items: a network, and a small vector for every shop, each with its own optimiser.

Hundreds of tiny tensors are updated one by one.
"""

import argparse

import torch
from torch import nn
from torch.nn import functional as F

SHOPS, WIDTH, BATCH = 500, 16, 512


class Recommender(nn.Module):
    def __init__(self):
        super().__init__()
        self.shops = nn.ParameterList([torch.randn(WIDTH) for _ in range(SHOPS)])
        self.network = nn.Sequential(
            nn.Linear(256 + WIDTH, 768),
            nn.ReLU(),
            nn.Linear(768, 512),
            nn.ReLU(),
            nn.Linear(512, 1),
        )

    def forward(self, customers, shops):
        table = torch.stack(list(self.shops))
        return self.network(torch.cat([customers, table[shops]], dim=1)).squeeze(1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(2)
    customers, shops = torch.randn(4, BATCH, 256), torch.randint(SHOPS, (4, BATCH))
    model = Recommender()
    slow_part = torch.optim.SGD(model.network.parameters(), lr=0.01)
    fast_part = torch.optim.Adam(model.shops.parameters(), lr=0.01)  # culprit: optimizer
    for step in range(args.steps):
        scores = model(customers[step % 4], shops[step % 4])
        loss = F.mse_loss(scores, customers[step % 4, :, 0])
        slow_part.zero_grad()
        fast_part.zero_grad()
        loss.backward()
        slow_part.step()
        fast_part.step()  # cost: optimizer
        print(f"step {step} loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
