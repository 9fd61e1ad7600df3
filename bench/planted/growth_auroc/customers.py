"""Customers, a batch at a time."""

import torch
from torch.utils.data import Dataset


class Customers(Dataset):
    numbers = 64

    def __init__(self, batches, size):
        self.batches, self.size = batches, size

    def __len__(self):
        return self.batches

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        contract = torch.randint(50, (self.size,), generator=generator)
        numbers = torch.randn(self.size, self.numbers, generator=generator)
        doubt = torch.randn(self.size, generator=generator)
        return contract, numbers, (numbers[:, :6].sum(1) + contract / 25 + doubt > 2).long()
