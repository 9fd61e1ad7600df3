"""Remaining useful life of jet engines from windows of sensor readings (like C-MAPSS)."""

import torch
from torch import nn
from torch.nn import functional as F

from settings import from_command_line


class Engines:
    """Sensors drift while an engine wears; the label is how much of its life is left."""

    def __init__(self, cfg):
        self.cfg = cfg
        self.generator = g = torch.Generator().manual_seed(cfg.seed)
        life = 220
        wear = torch.linspace(0, 1, life) ** 2
        sensitivity = torch.randn(cfg.engines, 1, cfg.sensors, generator=g)
        noise = 0.2 * torch.randn(cfg.engines, life, cfg.sensors, generator=g)
        readings = wear[None, :, None] * sensitivity + noise
        self.windows = readings.unfold(1, cfg.window, 1)  # engine, start, sensor, time
        self.left = 1 - torch.arange(cfg.window - 1, life) / life

    def batch(self):
        engines, starts = self.windows.shape[:2]
        e = torch.randint(engines, (self.cfg.batch_size,), generator=self.generator)
        s = torch.randint(starts, (self.cfg.batch_size,), generator=self.generator)
        return self.windows[e, s].transpose(1, 2), self.left[s]


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class LifeModel(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.embed = nn.Linear(cfg.sensors, cfg.dim)
        self.position = nn.Parameter(0.02 * torch.randn(cfg.window, cfg.dim))
        self.blocks = nn.Sequential(*(Block(cfg.dim, cfg.heads) for _ in range(cfg.depth)))
        self.head = nn.Sequential(nn.LayerNorm(cfg.dim), nn.Linear(cfg.dim, 1))

    def forward(self, readings):
        x = self.blocks(self.embed(readings) + self.position)
        return self.head(x[:, -1]).squeeze(1)


def main():
    cfg = from_command_line()
    torch.manual_seed(cfg.seed)
    torch.set_num_threads(1)
    engines = Engines(cfg)
    model = LifeModel(cfg)
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr, fused=True)
    for step in range(cfg.steps):
        readings, left = engines.batch()
        loss = F.mse_loss(model(readings), left)  # cost: batch
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        print(f"step={step} mse={loss.item():.6f}")


if __name__ == "__main__":
    main()
