from torch import nn


class Residual(nn.Module):
    def __init__(self, width, dilation):
        super().__init__()
        self.block = nn.Sequential(
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.Conv1d(width, width, 5, padding=2 * dilation, dilation=dilation),
        )

    def forward(self, x):
        return x + self.block(x)


class PromoterNet(nn.Module):
    """Motif scanner, pooling, dilated residual blocks, one number per window."""

    def __init__(self, width=16, blocks=2):
        super().__init__()
        self.motifs = nn.Conv1d(4, width, 15, stride=4, padding=7)
        self.pool = nn.MaxPool1d(2)
        self.blocks = nn.Sequential(*[Residual(width, 2**i) for i in range(blocks)])
        self.head = nn.Sequential(nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(width, 1))

    def forward(self, planes):
        hidden = self.pool(self.motifs(planes).relu())
        return self.head(self.blocks(hidden)).squeeze(1)
