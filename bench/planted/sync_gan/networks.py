"""The two players."""

from torch import nn


class Generator(nn.Module):
    def __init__(self, noise, width):
        super().__init__()
        self.start = nn.Linear(noise, 2 * width * 8 * 8)
        self.grow = nn.Sequential(
            nn.Unflatten(1, (2 * width, 8, 8)),
            nn.GroupNorm(4, 2 * width),
            nn.ReLU(),
            nn.ConvTranspose2d(2 * width, width, 4, stride=2, padding=1),
            nn.GroupNorm(4, width),
            nn.ReLU(),
            nn.ConvTranspose2d(width, 1, 4, stride=2, padding=1),
            nn.Tanh(),
        )

    def forward(self, noise):
        return self.grow(self.start(noise))


class Discriminator(nn.Module):
    """One score for each patch of 4 by 4 pixels."""

    def __init__(self, width):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, width, 4, stride=2, padding=1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(width, 2 * width, 4, stride=2, padding=1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(2 * width, 2 * width, 3, padding=1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(2 * width, 1, 3, padding=1),
        )

    def forward(self, pictures):
        return self.layers(pictures)
