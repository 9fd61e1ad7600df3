"""Questions that customers ask; some words betray the department."""

import torch
from torch.utils.data import Dataset


class Questions(Dataset):
    def __init__(self, count, length, vocabulary, departments, seed):
        generator = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(departments, (count,), generator=generator)
        self.tokens = torch.randint(100, vocabulary, (count, length), generator=generator)
        telling = torch.rand(count, length, generator=generator) < 0.1
        betraying = 2 + self.labels.unsqueeze(1) * 5 + torch.arange(length) % 5
        self.tokens = torch.where(telling, betraying, self.tokens)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        tokens = self.tokens[index]
        return {
            "input_ids": tokens,
            "attention_mask": torch.ones_like(tokens),
            "labels": self.labels[index],
        }
