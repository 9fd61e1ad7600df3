"""Recordings of the sea, and what has to be done to them before a network can listen."""

import numpy as np
import torch
from torch.utils.data import Dataset


def pre_emphasise(sound, strength=0.95):
    """High notes louder, sample by sample as the filter is defined."""
    filtered = np.empty_like(sound)
    filtered[0] = sound[0]
    filtered[1:] = sound[1:] - strength * sound[:-1]
    return filtered


def spectrogram(sound, bands, hop=64):
    """Loudness of each band over time, in decibels."""
    window = np.hanning(2 * bands)
    starts = np.arange(0, len(sound) - 2 * bands, hop)
    frames = np.stack([sound[start : start + 2 * bands] * window for start in starts])
    power = np.abs(np.fft.rfft(frames, axis=1))[:, :bands] ** 2
    return 10 * np.log10(power.T + 1e-6)


class SeaRecordings(Dataset):
    """Noise of the sea; in every second recording a whale calls."""

    def __init__(self, config):
        self.config = config
        self.samples = config.seconds * config.rate

    def __len__(self):
        return self.config.recordings

    def record(self, index):
        rng = np.random.default_rng(index)
        sea = np.convolve(rng.normal(size=self.samples), np.ones(32) / 32, mode="same")
        if index % 2:
            time = np.arange(self.samples) / self.config.rate
            pitch = rng.uniform(100, 300) * (1 + 0.1 * np.sin(2 * np.pi * time))
            sea += 0.2 * np.sin(2 * np.pi * np.cumsum(pitch) / self.config.rate)
        return sea

    def __getitem__(self, index):
        sound = pre_emphasise(self.record(index))
        for room in (40, 90):
            sound = sound + 0.3 * np.roll(sound, room)
            sound = np.convolve(sound, np.hanning(room), mode="same") / room
        picture = spectrogram(sound, self.config.bands)
        picture = (picture - picture.mean()) / (picture.std() + 1e-6)
        return torch.from_numpy(picture.astype(np.float32)).unsqueeze(0), float(index % 2)
