"""Prompts of several lengths, padded on the left, and the answers that are wanted."""

import torch
from torch.utils.data import Dataset


class Dialogues(Dataset):
    def __init__(self, count, length, vocabulary):
        self.count, self.length, self.vocabulary = count, length, vocabulary

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        tokens = torch.randint(3, self.vocabulary, (self.length,), generator=generator)
        missing = int(torch.randint(self.length // 3, (), generator=generator))
        mask = torch.ones_like(tokens)
        tokens[:missing], mask[:missing] = 0, 0
        wanted = torch.randint(3, self.vocabulary, (16,), generator=generator)
        return {"input_ids": tokens, "attention_mask": mask, "wanted": wanted}


def overlap(made, wanted):
    """The share of wanted words that were said, over the batch."""
    said = (wanted.unsqueeze(2) == made.unsqueeze(1)).any(2)
    return said.float().mean().item()
