"""Trains an autoencoder of sound frames with a codebook, whose entries follow the frames.

The distances of all frames to all entries are computed within one buffer.
"""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=100_000)
args = parser.parse_args()

torch.manual_seed(0)
torch.set_num_threads(2)

FRAMES, ENTRIES, WIDTH, CODE = 4096, 2560, 128, 8

sounds = torch.randn(4, FRAMES, WIDTH)
encoder = nn.Sequential(nn.Linear(WIDTH, 256), nn.ReLU(), nn.Linear(256, CODE))
decoder = nn.Sequential(nn.Linear(CODE, 256), nn.ReLU(), nn.Linear(256, WIDTH))
codebook = 0.3 * torch.randn(ENTRIES, CODE)
distances = torch.empty(FRAMES, ENTRIES)
opt = torch.optim.SGD([*encoder.parameters(), *decoder.parameters()], lr=0.05)

for step in range(args.steps):
    x = sounds[step % len(sounds)]
    z = encoder(x)

    with torch.no_grad():
        zz = (z * z).sum(1, keepdim=True)
        cc = (codebook * codebook).sum(1)
        torch.mm(z, codebook.T, out=distances)
        distances.mul_(-2).add_(zz).add_(cc)
        nearest = distances.argmin(1)
        q = codebook[nearest]

    recon = decoder(z + (q - z).detach())
    loss = (recon - x).pow(2).mean() + 0.25 * (z - q).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    codebook.index_add_(0, nearest, z.detach() - q, alpha=0.01)
    print("step", step, "loss", f"{loss.item():.6f}")
