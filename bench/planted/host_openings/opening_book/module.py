import lightning as L
import torch
from torch import nn
from torch.nn import functional as F


class Tower(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x):
        return F.relu(x + self.second(F.relu(self.norm(self.first(x)))))


class OpeningNet(nn.Module):
    """Source square times goal square, from per-square features."""

    def __init__(self, channels, towers):
        super().__init__()
        self.stem = nn.Conv2d(12, channels, 3, padding=1)
        self.towers = nn.Sequential(*[Tower(channels) for _ in range(towers)])
        self.source = nn.Conv2d(channels, 24, 1)
        self.goal = nn.Conv2d(channels, 24, 1)

    def forward(self, planes):
        hidden = self.towers(F.relu(self.stem(planes)))
        source, goal = self.source(hidden).flatten(2), self.goal(hidden).flatten(2)
        return (source.transpose(1, 2) @ goal).flatten(1)


class OpeningModule(L.LightningModule):
    def __init__(self, channels=32, towers=2, lr=0.02):
        super().__init__()
        self.save_hyperparameters()
        self.net = OpeningNet(channels, towers)

    def training_step(self, batch, batch_idx):
        logits = self.net(batch["planes"])
        return {"loss": F.cross_entropy(logits, batch["move"]), "logits": logits.detach()}

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.hparams.lr, momentum=0.9, nesterov=True)
