"""Trains a classifier and writes the mean probabilities for a dashboard, at every step."""

import argparse
import json
import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

CLASSES, BATCH = 100, 320


def write_dashboard(path, step, loss, probabilities):
    state = {"step": step, "loss": loss, "probabilities": probabilities.mean(dim=0).tolist()}
    path.write_text(json.dumps(state))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(2)
    dashboard = Path(tempfile.gettempdir(), "dashboard_of_a_planted_script.json")
    rows, labels = torch.randn(4, BATCH, 512), torch.randint(CLASSES, (4, BATCH))
    model = nn.Sequential(nn.Linear(512, 1024), nn.Tanh(), nn.Linear(1024, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, weight_decay=1e-4)
    for step in range(args.steps):
        scores = model(rows[step % 4])
        loss = F.cross_entropy(scores, labels[step % 4])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        write_dashboard(dashboard, step, loss.item(), scores.detach().softmax(dim=1))
        print(f"{step} {loss.item():.6f}")


if __name__ == "__main__":
    main()
