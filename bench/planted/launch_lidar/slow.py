"""What stands at the roadside? Classifies lidar clusters (car, cyclist, pole, tree, wall, person)."""

import math
import os

import torch
from sampling import farthest_points, nearest, take
from torch import nn
from torch.nn import functional as F

STEPS = int(os.environ.get("STEPS", 20_000))
CLASSES, POINTS, BATCH = 6, 512, 24


def make_clusters(count, seed=0):
    """Ellipsoids and boxes of class-specific proportions, noisy, turned around the vertical."""
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, CLASSES, (count,), generator=g)
    size = torch.tensor(
        [[4, 1.8, 1.5], [1.8, 0.5, 1.7], [0.2, 0.2, 4], [2, 2, 5], [6, 0.3, 2], [0.5, 0.5, 1.8]]
    )
    points = torch.randn(count, POINTS, 3, generator=g)
    round_ = F.normalize(points, dim=-1)
    boxy = points.clamp(-1, 1)
    points = torch.where((labels % 2 == 0)[:, None, None], boxy, round_) * size[labels][:, None] / 2
    angle = torch.rand(count, generator=g) * 2 * math.pi
    c, s, o, i = angle.cos(), angle.sin(), torch.zeros(count), torch.ones(count)
    turn = torch.stack([c, -s, o, s, c, o, o, o, i], 1).view(-1, 3, 3)
    return points @ turn + 0.03 * torch.randn(count, POINTS, 3, generator=g), labels


class SetAbstraction(nn.Module):
    """Chooses centres, looks at the neighbours of each, and keeps the strongest answer."""

    def __init__(self, centres, neighbours, inside, widths):
        super().__init__()
        self.centres, self.neighbours = centres, neighbours
        layers = []
        for width in widths:
            layers += [nn.Linear(inside, width), nn.ReLU()]
            inside = width
        self.layers = nn.Sequential(*layers)

    def forward(self, xyz, features=None):
        centres = take(xyz, farthest_points(xyz, self.centres))
        near = nearest(xyz, centres, self.neighbours)
        local = take(xyz, near) - centres[:, :, None]
        if features is not None:
            local = torch.cat([local, take(features, near)], -1)
        return centres, self.layers(local).amax(2)


class RoadsideNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.fine = SetAbstraction(40, 16, 3, (32, 64))
        self.coarse = SetAbstraction(10, 8, 3 + 64, (64, 128))
        self.head = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, CLASSES))

    def forward(self, xyz):
        xyz, features = self.fine(xyz)
        _, features = self.coarse(xyz, features)
        return self.head(features.amax(1))


def main():
    torch.manual_seed(0)
    clouds, labels = make_clusters(3000)
    net = RoadsideNet()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    order = torch.Generator().manual_seed(1)
    for step in range(STEPS):
        rows = torch.randint(0, len(clouds), (BATCH,), generator=order)
        loss = F.cross_entropy(net(clouds[rows]), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step}: loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
