"""Field recordings as wav files on disk, and the dataset of short clips cut out of them."""

import wave
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Dataset

SPECIES = ["blackbird", "robin", "wren", "chiffchaff", "great tit", "song thrush", "dunnock", "nuthatch"]


def record_forest(folder: Path, count: int, minutes: float, rate: int, seed: int) -> list[tuple[Path, int]]:
    """Stands in for the real recordings: every bird sings at its own pitch, in wind and rain."""
    rng = np.random.default_rng(seed)
    samples = int(minutes * 60 * rate)
    time = np.arange(rate, dtype=np.float32) / rate
    files = []
    for number in range(count):
        species = number % len(SPECIES)
        pitch = 1500 + 600 * species
        second = np.sin(2 * np.pi * pitch * time + 3 * np.sin(2 * np.pi * 6 * time))
        song = np.tile((second * 3000).astype(np.int16), samples // rate + 1)[:samples]
        song += rng.integers(-4000, 4000, size=samples, dtype=np.int16)
        path = folder / f"forest_{number:03d}.wav"
        with wave.open(str(path), "wb") as out:
            out.setnchannels(1)
            out.setsampwidth(2)
            out.setframerate(rate)
            out.writeframes(song.tobytes())
        files.append((path, species))
    return files


def load_audio(path: Path) -> np.ndarray:
    """Mono float32 in [-1, 1)."""
    with wave.open(str(path), "rb") as wav:
        raw = wav.readframes(wav.getnframes())
    return np.frombuffer(raw, dtype=np.int16).astype(np.float32) / 32768.0  # cost: input


def audio_length(path: Path) -> int:
    with wave.open(str(path), "rb") as wav:
        return wav.getnframes()


class BirdClips(Dataset):
    """Random one-second clips; which clip belongs to an index is fixed by the seed."""

    def __init__(self, files, clip_samples: int, size: int, seed: int):
        self.files = files
        self.clip_samples = clip_samples
        rng = np.random.default_rng(seed)
        lengths = np.array([audio_length(path) for path, _ in files])
        self.which = rng.integers(0, len(files), size=size)
        self.offset = (rng.random(size) * (lengths[self.which] - clip_samples)).astype(np.int64)
        self.gain = rng.uniform(0.6, 1.4, size=size).astype(np.float32)

    def __len__(self):
        return len(self.which)

    def __getitem__(self, index):
        path, species = self.files[self.which[index]]
        start = int(self.offset[index])
        audio = load_audio(path)[start : start + self.clip_samples]  # culprit: input
        return torch.from_numpy(audio * self.gain[index]), species
