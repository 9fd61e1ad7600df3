"""Evaluates an encoder: how often is the right photograph among the ten nearest of a gallery?

The gallery is normalised again for every batch of queries.
"""

import argparse

import torch
from torch import nn
from torch.nn import functional as F

GALLERY, DIM, BATCH = 60_000, 256, 64


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(4),
            nn.Flatten(),
            nn.Linear(64 * 16, DIM),
        )

    def forward(self, images):
        return self.layers(images)


def count_hits(query, gallery, target, k=10):
    scores = F.normalize(query, dim=1) @ F.normalize(gallery, dim=1).T  # culprit: recompute
    nearest = scores.topk(k, dim=1).indices
    return (nearest == target[:, None]).any(dim=1).float().sum()


@torch.no_grad()
def evaluate(model, gallery, steps):
    model.eval()
    hits = seen = 0
    for step in range(steps):
        images = torch.randn(BATCH, 3, 32, 32)
        target = torch.randint(GALLERY, (BATCH,))
        # The target shines through the noise, as it does when the encoder is trained.
        query = model(images) + gallery[target] / 4 + torch.randn(BATCH, DIM)
        hits += count_hits(query, gallery, target)
        seen += BATCH
        print(f"batch {step} recall@10 {hits / seen:.6f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(2)
    evaluate(Encoder(), torch.randn(GALLERY, DIM), args.steps)


if __name__ == "__main__":
    main()
