"""Rows and what each task wants to know of them."""

import torch


class TaskData:
    def __init__(self, size, features, tasks, seed, batches=8):
        shared = torch.Generator().manual_seed(99)
        self.weights = torch.randn(features, tasks, generator=shared) / features**0.5
        own = torch.Generator().manual_seed(seed)
        self.rows = torch.randn(batches, size, features, generator=own)

    def batch(self, step):
        rows = self.rows[step % len(self.rows)]
        return rows, torch.tanh(rows @ self.weights)
