"""The load of a power grid, and a forecaster that looks at it in patches."""

import torch
from torch import nn
from torch.utils.data import Dataset

HOURS, PATCH, AHEAD, REGIONS = 336, 12, 24, 4


class GridLoad(Dataset):
    """Days, weeks, and the weather, with a window that begins at any hour."""

    def __init__(self, count, seed):
        generator = torch.Generator().manual_seed(seed)
        hours = torch.arange(count + HOURS + AHEAD, dtype=torch.float32)
        day = torch.sin(2 * torch.pi * hours / 24)
        week = torch.sin(2 * torch.pi * hours / 168)
        weather = torch.randn(REGIONS, len(hours), generator=generator).cumsum(1) / 50
        self.load = (day + 0.5 * week + weather).T.contiguous()
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        window = self.load[index : index + HOURS + AHEAD]
        return window[:HOURS], window[HOURS:, 0]


class PatchForecaster(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.embed = nn.Linear(PATCH * REGIONS, width)
        self.places = nn.Parameter(0.02 * torch.randn(HOURS // PATCH, width))
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, AHEAD)

    def forward(self, past):
        patches = past.unflatten(1, (-1, PATCH)).flatten(2)
        return self.head(self.encoder(self.embed(patches) + self.places).mean(1))
