"""Sounds that stand for digits: a chord for each of them, noise between them."""

import torch
from torch.utils.data import Dataset

BANDS, DIGITS, MOST = 40, 10, 12
FRAMES_PER_DIGIT = 8


class SpokenDigits(Dataset):
    def __init__(self, count, seed):
        self.generator = torch.Generator().manual_seed(seed)
        self.chords = torch.randn(DIGITS, BANDS, generator=self.generator)
        self.numbers = torch.randint(DIGITS, (count, MOST), generator=self.generator)
        self.counts = torch.randint(MOST // 2, MOST + 1, (count,), generator=self.generator)

    def __len__(self):
        return len(self.numbers)

    def __getitem__(self, index):
        count = int(self.counts[index])
        digits = self.numbers[index, :count]
        noise = torch.Generator().manual_seed(index)
        frames = self.chords[digits].repeat_interleave(FRAMES_PER_DIGIT, 0)
        sound = frames + 0.5 * torch.randn(frames.shape, generator=noise)
        return sound, digits + 1


def collate(samples):
    """Pad the sounds, join the digits end to end as the loss wants them."""
    sounds, digits = zip(*samples, strict=True)
    lengths = torch.tensor([len(sound) for sound in sounds])
    counts = torch.tensor([len(each) for each in digits])
    padded = torch.zeros(len(sounds), MOST * FRAMES_PER_DIGIT, BANDS)
    for row, sound in zip(padded, sounds, strict=True):
        row[: len(sound)] = sound
    return padded, lengths, torch.cat(digits), counts
