"""Scores loans with a mixture of experts: it looks slow in many places, and is so in none.

The experts take turns in a loop, the loader has no workers and collates by hand, and the loop
reads number after number; but nearly all the time goes into eight large products.
"""

import argparse

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

FEATURES, HIDDEN, EXPERTS, GRADES, BATCH = 256, 1280, 4, 5, 256


class Loans(Dataset):
    def __init__(self, count=4096):
        self.features = torch.randn(count, FEATURES)
        self.grades = torch.randint(GRADES, (count,)).tolist()

    def __len__(self):
        return len(self.grades)

    def __getitem__(self, index):
        return {"features": self.features[index], "grade": self.grades[index]}


def collate(loans):
    features = []
    grades = []
    for loan in loans:
        features.append(loan["features"])
        grades.append(loan["grade"])
    return torch.stack(features), torch.tensor(grades)


class Mixture(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(FEATURES, EXPERTS)
        self.up = nn.ModuleList(nn.Linear(FEATURES, HIDDEN) for _ in range(EXPERTS))
        self.down = nn.ModuleList(nn.Linear(HIDDEN, HIDDEN) for _ in range(EXPERTS))
        self.head = nn.Linear(HIDDEN, GRADES)

    def forward(self, features):
        weights = self.gate(features).softmax(dim=1)
        mixed = torch.zeros(len(features), HIDDEN)
        for expert in range(EXPERTS):
            hidden = F.relu(self.up[expert](features))
            mixed = mixed + weights[:, expert, None] * self.down[expert](hidden)
        return self.head(mixed)


def measure_grades(scores, grades):
    """How many of each grade were right."""
    right = []
    for grade in range(GRADES):
        chosen = grades == grade
        right.append((scores[chosen].argmax(dim=1) == grade).sum().item())
    return right


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(2)
    loader = DataLoader(Loans(), BATCH, shuffle=True, collate_fn=collate, num_workers=0)
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
            total += loss.item()
            right = measure_grades(scores.detach().cpu(), grades.cpu())
            print(f"step {step} loss {loss.item():.6f} mean {total / (step + 1):.4f} {right}")
            step += 1
            if step == args.steps:
                break


if __name__ == "__main__":
    main()
