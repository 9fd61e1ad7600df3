"""Trains a small transformer on characters, in one bare loop: nothing is wrong here."""

import argparse

import torch
from torch import nn
from torch.nn import functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=100_000)
steps = parser.parse_args().steps

torch.manual_seed(0)
torch.set_num_threads(2)
text = torch.randint(80, (200_000,))
embed = nn.Embedding(80, 256)
place = nn.Embedding(64, 256)
block = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True, norm_first=True)
head = nn.Linear(256, 80)
model = nn.ModuleList([embed, place, block, head])
mask = nn.Transformer.generate_square_subsequent_mask(64)
positions = torch.arange(64)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)

for step in range(steps):
    starts = torch.randint(len(text) - 65, (16,))
    x = torch.stack([text[s : s + 64] for s in starts])
    y = torch.stack([text[s + 1 : s + 65] for s in starts])
    hidden = block(embed(x) + place(positions), src_mask=mask, is_causal=True)
    loss = F.cross_entropy(head(hidden).flatten(0, 1), y.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"iter {step}: loss {loss.item():.6f}")
