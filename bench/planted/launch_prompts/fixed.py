"""Trains a model whose learned prompts replace some embeddings of every sentence.

They are written in one operation.
"""

import argparse

import torch
from torch import nn
from torch.nn import functional as F

WORDS, WIDTH, LENGTH, PROMPTS = 2000, 128, 64, 8


class Prompted(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.prompts = nn.Parameter(torch.randn(PROMPTS, WIDTH))
        self.body = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.LayerNorm(WIDTH)
        )
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, ids, places):
        x = self.embed(ids)
        where = places[..., None].expand(-1, -1, WIDTH)
        x = x.scatter(1, where, self.prompts.expand(len(ids), -1, -1))
        return self.head(self.body(x).mean(dim=1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(2)
    ids = torch.randint(WORDS, (4, 32, LENGTH))
    places = torch.stack([torch.randperm(LENGTH)[:PROMPTS] for _ in range(4 * 32)])
    places = places.view(4, 32, PROMPTS)
    model = Prompted()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(args.steps):
        batch = step % 4
        loss = F.cross_entropy(model(ids[batch], places[batch]), ids[batch, :, 0])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
