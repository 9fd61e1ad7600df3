"""Pictures of one bright blob each."""

import torch
from torch.utils.data import Dataset


class BlobPictures(Dataset):
    def __init__(self, count, side):
        generator = torch.Generator().manual_seed(3)
        self.centres = torch.rand(count, 2, generator=generator) * side
        self.places = torch.arange(side, dtype=torch.float32)

    def __len__(self):
        return len(self.centres)

    def __getitem__(self, index):
        x, y = self.centres[index]
        across = torch.exp(-((self.places - x) ** 2) / 8)
        down = torch.exp(-((self.places - y) ** 2) / 8)
        return (2 * torch.outer(down, across) - 1).unsqueeze(0)
