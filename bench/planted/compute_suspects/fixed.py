"""Scores loans with a mixture of experts, which work at once on batches picked as a whole."""

import argparse

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

FEATURES, HIDDEN, EXPERTS, GRADES, BATCH = 256, 1280, 4, 5, 256


class Loans(Dataset):
    def __init__(self, count=4096):
        self.features = torch.randn(count, FEATURES)
        self.grades = torch.randint(GRADES, (count,))

    def __len__(self):
        return len(self.grades)

    def __getitems__(self, indices):
        return self.features[indices], self.grades[indices]


def run_all(layers, inputs):
    """One product for all experts."""
    weights = torch.stack([layer.weight for layer in layers])
    biases = torch.stack([layer.bias for layer in layers])
    return torch.baddbmm(biases[:, None], inputs, weights.transpose(1, 2))


class Mixture(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(FEATURES, EXPERTS)
        self.up = nn.ModuleList(nn.Linear(FEATURES, HIDDEN) for _ in range(EXPERTS))
        self.down = nn.ModuleList(nn.Linear(HIDDEN, HIDDEN) for _ in range(EXPERTS))
        self.head = nn.Linear(HIDDEN, GRADES)

    def forward(self, features):
        weights = self.gate(features).softmax(dim=1)
        hidden = F.relu(run_all(self.up, features.expand(EXPERTS, -1, -1)))
        return self.head(torch.einsum("be,ebh->bh", weights, run_all(self.down, hidden)))


def measure_grades(scores, grades):
    """How many of each grade were right."""
    return torch.bincount(grades[scores.argmax(dim=1) == grades], minlength=GRADES).tolist()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(2)
    loader = DataLoader(Loans(), BATCH, shuffle=True, collate_fn=tuple)
    model = Mixture()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    step = 0
    total = 0.0
    while step < args.steps:
        for features, grades in loader:
            optimizer.zero_grad()
            scores = model(features)
            loss = F.cross_entropy(scores, grades)
            loss.backward()
            optimizer.step()
            value = loss.item()
            total += value
            right = measure_grades(scores.detach(), grades)
            print(f"step {step} loss {value:.6f} mean {total / (step + 1):.4f} {right}")
            step += 1
            if step == args.steps:
                break


if __name__ == "__main__":
    main()
