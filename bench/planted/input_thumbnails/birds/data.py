"""Photographs in a folder, and how they become batches."""

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset

MEAN = torch.tensor([0.48, 0.46, 0.41]).view(3, 1, 1)
STD = torch.tensor([0.23, 0.22, 0.23]).view(3, 1, 1)


def take_photographs(folder, config):
    """Blurred noise in the colours of a species, as large as the camera makes them."""
    rng = np.random.default_rng(config.seed)
    paths = []
    for number in range(config.photographs):
        species = number % config.species
        small = rng.integers(0, 160, (24, 32, 3)) + np.array([species * 7, 40, 90 - species * 7])
        photo = Image.fromarray(small.astype(np.uint8)).resize(
            (config.camera_width, config.camera_height), Image.Resampling.BICUBIC
        )
        path = folder / f"{number:05d}_{species:02d}.jpg"
        photo.save(path, quality=90)
        paths.append(path)
    return paths


def open_photo(path, side):
    """The middle square of a photograph, shrunk to what the network takes."""
    photo = Image.open(path).convert("RGB")  # cost: input
    short = min(photo.size)
    left, top = (photo.width - short) // 2, (photo.height - short) // 2
    square = photo.crop((left, top, left + short, top + short))
    return square.resize((side, side), Image.Resampling.BILINEAR)


class BirdPhotos(Dataset):
    def __init__(self, paths, config):
        self.paths = paths
        self.side = config.side
        self.species = [int(path.stem.split("_")[1]) for path in paths]

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        photo = open_photo(self.paths[index], self.side)  # culprit: input
        if torch.rand(()) < 0.5:
            photo = photo.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        pixels = torch.from_numpy(np.array(photo)).permute(2, 0, 1).float().div_(255)
        return (pixels - MEAN) / STD, self.species[index]
