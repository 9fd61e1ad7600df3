"""Evaluates a segmentation model: a loop without an optimiser, over labelled pictures.

The confusions of a batch are counted in one operation.
"""

import argparse

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CLASSES = 12


def build_model():
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, CLASSES, 1),
        nn.Upsample(scale_factor=0.25),
    )


@torch.inference_mode()
def evaluate(model, loader, steps):
    confusion = np.zeros((CLASSES, CLASSES), dtype=np.int64)
    step = 0
    while True:
        for pictures, labels in loader:
            if step == steps:
                return confusion
            predicted = model(pictures).argmax(dim=1)
            pairs = labels.flatten() * CLASSES + predicted.flatten()
            confusion += torch.bincount(pairs, minlength=CLASSES**2).view(CLASSES, CLASSES).numpy()
            print(f"batch {step} accuracy {np.trace(confusion) / confusion.sum():.6f}")
            step += 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(2)
    data = TensorDataset(torch.rand(64, 3, 96, 96), torch.randint(CLASSES, (64, 24, 24)))
    evaluate(build_model().eval(), DataLoader(data, batch_size=16), args.steps)
