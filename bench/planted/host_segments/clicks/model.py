"""The network: embeddings of the categories beside the numbers, and a perceptron on top."""

import torch
from torch import nn


class ClickModel(nn.Module):
    def __init__(self, categories=1000, columns=8, numbers=64, width=512):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(categories, 16) for _ in range(columns))
        self.mlp = nn.Sequential(
            nn.Linear(16 * columns + numbers, width),
            nn.ReLU(),
            nn.Linear(width, width // 2),
            nn.ReLU(),
            nn.Linear(width // 2, 1),
        )

    def forward(self, categories, numbers):
        embedded = [
            table(ids) for table, ids in zip(self.tables, categories.unbind(1), strict=True)
        ]
        return self.mlp(torch.cat([*embedded, numbers], dim=1)).squeeze(1)
