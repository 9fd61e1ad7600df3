"""Trains a network to grade computed tomography scans by how diseased they look.

The scans stay integers, as the machine gives them, until their batch is needed.
"""

import argparse

import torch
from torch import nn
from torch.nn import functional as F


def load_scans(batches, size):
    """Batches of scans in Hounsfield units, each with the grades a doctor gave."""
    scans = [
        torch.randint(-1000, 1000, (size, 1, 24, 128, 128), dtype=torch.int16)
        for _ in range(batches)
    ]
    grades = [torch.rand(size) for _ in range(batches)]
    return scans, grades


def build_model():
    return nn.Sequential(
        nn.AvgPool3d(4),
        nn.BatchNorm3d(1),
        nn.Conv3d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool3d(2),
        nn.Conv3d(8, 16, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool3d(1),
        nn.Flatten(),
        nn.Linear(16, 1),
    )


def train(steps, device):
    scans, grades = load_scans(batches=4, size=24)
    model = build_model().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for step in range(steps):
        volumes = scans[step % len(scans)].to(device, torch.float32)  # culprit: transfer
        target = grades[step % len(grades)].to(device)
        loss = F.mse_loss(model(volumes).squeeze(1), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"[{step}] mse={loss.item():.6f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(2)
    train(args.steps, torch.device("cuda" if torch.cuda.is_available() else "cpu"))


if __name__ == "__main__":
    main()
