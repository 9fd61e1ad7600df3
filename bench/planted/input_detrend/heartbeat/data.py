"""Which recordings are there, and what was the heart rate in each?"""

import numpy as np
from torch.utils.data import Dataset

LENGTH, RATE_HZ = 512, 64


class Recordings(Dataset):
    def __init__(self, count, transform):
        rng = np.random.default_rng(0)
        time = np.arange(LENGTH) / RATE_HZ
        self.beats = rng.uniform(0.8, 2.5, count).astype(np.float32)
        pulse = np.sin(2 * np.pi * self.beats[:, None] * time)
        drift = np.cumsum(rng.normal(0, 0.05, (count, LENGTH)), axis=1)
        self.signals = (pulse + drift).astype(np.float32)
        self.transform = transform

    def __len__(self):
        return len(self.signals)

    def __getitem__(self, index):
        return self.transform(self.signals[index]), self.beats[index]
