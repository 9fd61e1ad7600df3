"""Log-mel front end and a small convolutional net on top."""

import torch
from torch import nn


def mel_bank(rate: int, n_fft: int, n_mels: int) -> torch.Tensor:
    def to_mel(f):
        return 2595 * torch.log10(1 + f / 700)

    top = to_mel(torch.tensor(rate / 2))
    edges = 700 * (10 ** (torch.linspace(0, float(top), n_mels + 2) / 2595) - 1)
    freqs = torch.linspace(0, rate / 2, n_fft // 2 + 1)
    rising = (freqs[None] - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    falling = (edges[2:, None] - freqs[None]) / (edges[2:] - edges[1:-1])[:, None]
    return torch.minimum(rising, falling).clamp(min=0)


class LogMel(nn.Module):
    def __init__(self, rate, n_fft, hop, n_mels):
        super().__init__()
        self.n_fft, self.hop = n_fft, hop
        self.register_buffer("window", torch.hann_window(n_fft))
        self.register_buffer("bank", mel_bank(rate, n_fft, n_mels))

    @torch.no_grad()
    def forward(self, audio):
        spectrum = torch.stft(audio, self.n_fft, self.hop, window=self.window, return_complex=True)
        power = spectrum.real.square() + spectrum.imag.square()
        return (self.bank @ power + 1e-6).log()


class Block(nn.Sequential):
    def __init__(self, inside, outside, stride=1):
        super().__init__(
            nn.Conv2d(inside, outside, 3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(outside),
            nn.ReLU(inplace=True),
        )


class BirdNet(nn.Module):
    def __init__(self, config, species: int):
        super().__init__()
        self.front = LogMel(config.sample_rate, config.n_fft, config.hop, config.n_mels)
        self.body = nn.Sequential(
            Block(1, 16, stride=2),
            Block(16, 32),
            Block(32, 48, stride=2),
            Block(48, 64, stride=2),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
        self.head = nn.Linear(64, species)

    def forward(self, audio):
        return self.head(self.body(self.front(audio)[:, None]))
