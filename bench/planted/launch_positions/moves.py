"""Sequences in which a move depends on the two before it."""

import torch
from torch.utils.data import Dataset


class MoveSequences(Dataset):
    def __init__(self, count, length, moves):
        self.count, self.length, self.moves = count, length, moves

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        jumps = torch.randint(3, (self.length,), generator=generator).tolist()
        sequence = [index % self.moves, (index * 7) % self.moves]
        for jump in jumps[2:]:
            sequence.append((sequence[-1] + 3 * sequence[-2] + jump) % self.moves)
        return torch.tensor(sequence)
