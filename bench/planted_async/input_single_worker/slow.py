"""Learns to rank documents; a loader process counts their words, and is slower than the device."""

import argparse
from collections import Counter

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

WORDS, LENGTH, BATCH, DOCUMENTS = 256, 3000, 32, 1024
device = torch.accelerator.current_accelerator()


class Documents(Dataset):
    """Counts of words, and how relevant a document is."""

    def __init__(self):
        generator = torch.Generator().manual_seed(1)
        skewed = torch.rand(DOCUMENTS, LENGTH, generator=generator).square() * WORDS
        self.documents = skewed.long().tolist()
        self.relevance = torch.rand(DOCUMENTS, generator=generator)

    def __len__(self):
        return DOCUMENTS

    def __getitem__(self, index):
        counts = Counter(self.documents[index])  # culprit: input
        row = [counts[word] / LENGTH for word in range(WORDS)]
        return torch.tensor(row), self.relevance[index]


class Ranker(nn.Module):
    """A perceptron over the counts."""

    def __init__(self, width=128, depth=3):
        super().__init__()
        self.first = nn.Linear(WORDS, width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.last = nn.Linear(width, 1)

    def forward(self, counts):
        state = torch.relu(self.first(counts))
        for layer in self.layers:
            state = torch.relu(layer(state))
        return self.last(state).squeeze(1)


def endless(loader):
    while True:
        yield from loader


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(
        Documents(), batch_size=BATCH, drop_last=True, num_workers=1, persistent_workers=True
    )
    batches = endless(loader)
    model = Ranker().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(args.steps):
        counts, relevance = (part.to(device) for part in next(batches))
        loss = nn.functional.mse_loss(model(counts), relevance)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
