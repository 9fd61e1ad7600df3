import numpy as np
import torch
from promoters.encoding import OneHot
from promoters.genome import Genome, reverse_complement
from torch.utils.data import DataLoader, Dataset


class PromoterWindows(Dataset):
    """Windows with the usual augmentations: a small shift and the other strand."""

    def __init__(self, genome: Genome, max_shift: int, seed: int):
        self.genome = genome
        self.encode = OneHot()
        rng = np.random.default_rng(seed)
        self.shift = rng.integers(-max_shift, max_shift + 1, size=len(genome.sites))
        self.flip = rng.random(len(genome.sites)) < 0.5

    def __len__(self):
        return len(self.genome.sites)

    def __getitem__(self, index):
        window = self.genome.around(index, int(self.shift[index]))
        if self.flip[index]:
            window = reverse_complement(window)
        return self.encode(window), self.genome.activity[index]


class DataModule:
    def __init__(self, cfg):
        self.cfg = cfg
        self.genome = Genome(cfg.genome_length, cfg.sites, cfg.window, cfg.seed)

    def train_loader(self):
        order = torch.Generator().manual_seed(self.cfg.seed)
        return DataLoader(
            PromoterWindows(self.genome, self.cfg.max_shift, self.cfg.seed + 1),
            batch_size=self.cfg.batch_size,
            shuffle=True,
            drop_last=True,
            generator=order,
        )
