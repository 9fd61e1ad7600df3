"""Mosaics: coloured tiles in a pattern that repeats, some of them lost."""

import torch
from torch.utils.data import Dataset


class Mosaics(Dataset):
    def __init__(self, count, tiles, colours, seed=0):
        generator = torch.Generator().manual_seed(seed)
        period = torch.randint(3, 9, (count, 1), generator=generator)
        motif = torch.randint(colours, (count, 9), generator=generator)
        self.tiles = motif.gather(1, torch.arange(tiles)[None, :] % period)
        self.rows = dict(enumerate(self.tiles))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        # A plain dict of rows; it was faster than the database.
        row = self.rows[index]
        return {"tiles": row, "name": f"mosaic-{index:05d}"}


class LoseTiles:
    """Collates, and hides a share of the tiles behind a mark of its own."""

    def __init__(self, colours, share, seed):
        self.mark, self.share = colours, share
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, items):
        tiles = torch.stack([item["tiles"] for item in items])
        lost = torch.rand(tiles.shape, generator=self.generator) < self.share
        return {
            "tiles": tiles.masked_fill(lost, self.mark),
            "wanted": tiles.masked_fill(~lost, -100),
            "names": [item["name"] for item in items],
        }
