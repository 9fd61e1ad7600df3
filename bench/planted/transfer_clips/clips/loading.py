"""Clips as a camera gives them (bytes, channels last), and what the network wants."""

import torch
from torch.utils.data import Dataset

MEAN = torch.tensor([0.43, 0.39, 0.37], dtype=torch.float64)
STD = torch.tensor([0.22, 0.22, 0.21], dtype=torch.float64)


class ClipDataset(Dataset):
    """A bright square that moves in the direction of its gesture."""

    def __init__(self, config):
        generator = torch.Generator().manual_seed(config.seed)
        shape = config.clips, config.frames, config.side, config.side, 3
        self.clips = torch.randint(0, 90, shape, dtype=torch.uint8, generator=generator)
        self.gestures = torch.arange(config.clips) % config.gestures
        for clip, gesture in zip(self.clips, self.gestures.tolist(), strict=True):
            for time, frame in enumerate(clip):
                at = (time * (gesture + 1)) % (config.side - 16)
                frame[at : at + 16, 8 : 24 + gesture] = 220

    def __len__(self):
        return len(self.clips)

    def __getitem__(self, index):
        return self.clips[index], self.gestures[index]


def prepare(clips):
    """Bytes to normalised numbers, channels first."""
    pixels = clips.permute(0, 4, 1, 2, 3).double() / 255.0  # culprit: transfer
    mean, std = MEAN.view(1, 3, 1, 1, 1), STD.view(1, 3, 1, 1, 1)
    return ((pixels - mean) / std).contiguous().float()  # cost: transfer
