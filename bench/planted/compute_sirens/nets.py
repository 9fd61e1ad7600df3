"""Frame by frame over a spectrogram, with the mean of the clip mixed in."""

from torch import nn


class MixerBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.clip_norm = nn.LayerNorm(width)
        self.clip = nn.Linear(width, width)
        self.band_norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 3 * width)
        self.act = nn.ReLU()
        self.down = nn.Linear(3 * width, width)

    def forward(self, x):
        y = x.mean(dim=1, keepdim=True)
        y = self.clip_norm(y)
        y = self.clip(y)
        x = x + y
        y = self.band_norm(x)
        y = self.up(y)
        y = self.act(y)
        y = self.down(y)
        return x + y


class SirenNet(nn.Module):
    def __init__(self, bands, classes, width=192, depth=2):
        super().__init__()
        self.stem = nn.Linear(bands, width)
        self.blocks = nn.ModuleList([MixerBlock(width) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(dim=1))
