"""Trains a small U-Net to find roads, water and houses in aerial photographs.

The overlap of each class is read out in a loop, and the loader has no workers.
"""

import argparse

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

CLASSES = ("ground", "road", "water", "house")


def block(inputs, outputs):
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.Conv2d(outputs, outputs, 3, padding=1),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.down1 = block(3, width)
        self.down2 = block(width, 2 * width)
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.merge = block(2 * width, width)
        self.out = nn.Conv2d(width, len(CLASSES), 1)

    def forward(self, x):
        first = self.down1(x)
        second = self.down2(F.max_pool2d(first, 2))
        return self.out(self.merge(torch.cat([first, self.up(second)], dim=1)))


@torch.no_grad()
def overlaps(logits, masks):
    predicted = logits[:, :, ::4, ::4].argmax(dim=1)
    masks = masks[:, ::4, ::4]
    scores = {}
    for index, name in enumerate(CLASSES):
        both = ((predicted == index) & (masks == index)).sum().item()
        either = ((predicted == index) | (masks == index)).sum().item()
        scores[name] = both / max(either, 1)
    return scores


def train(steps):
    images = torch.randn(64, 3, 64, 64)
    masks = torch.randint(len(CLASSES), (64, 64, 64))
    loader = DataLoader(TensorDataset(images, masks), batch_size=8, shuffle=True, num_workers=0)
    model = UNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = 0
    while True:
        for x, y in loader:
            if step == steps:
                return
            logits = model(x)
            loss = F.cross_entropy(logits, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scores = " ".join(f"{name} {score:.2f}" for name, score in overlaps(logits, y).items())
            print(f"step {step} loss {loss.item():.6f} {scores}")
            step += 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(2)
    train(args.steps)
