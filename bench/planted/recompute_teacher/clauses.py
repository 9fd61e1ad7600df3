"""Clauses of contracts, as token numbers; the first words say what kind a clause is."""

import torch
from torch.utils.data import Dataset


class Clauses(Dataset):
    def __init__(self, config):
        self.kinds = torch.randint(config.kinds, (config.clauses,))
        self.tokens = torch.randint(1, config.vocabulary, (config.clauses, config.length))
        self.tokens[:, :4] = 1 + self.kinds.unsqueeze(1) * 4 + torch.randint(4, (config.clauses, 4))

    def __len__(self):
        return len(self.kinds)

    def __getitem__(self, index):
        return index, self.tokens[index], self.kinds[index]
