"""Rain radar nowcasting with a ConvGRU: six frames in, the next one out."""

import copy
import os

import torch
from torch import nn
from torch.nn import functional as F

STEPS = int(os.environ.get("STEPS", 10_000))
BATCH, FRAMES, SIDE = 4, 6, 40


def make_weather(storms, length, seed):
    """Blobs of rain drifting with the wind, (storms, length, side, side), as bytes like the archive."""
    g = torch.Generator().manual_seed(seed)
    grid = torch.stack(torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij"))
    place = torch.rand(storms, 3, 2, generator=g) * SIDE
    wind = torch.randn(storms, 1, 2, generator=g)
    size = torch.rand(storms, 3, generator=g) * 4 + 2
    frames = []
    for _ in range(length):
        away = (grid[None, None] - place[..., None, None]).square().sum(2)
        rain = torch.exp(-away / (2 * size[..., None, None] ** 2)).sum(1)
        frames.append((rain.clamp(max=1) * 255).to(torch.uint8))
        place = (place + wind) % SIDE
    return torch.stack(frames, 1)


class ConvGRU(nn.Module):
    def __init__(self, inside, width):
        super().__init__()
        self.width = width
        self.gates = nn.Conv2d(inside + width, 2 * width, 3, padding=1)
        self.candidate = nn.Conv2d(inside + width, width, 3, padding=1)

    def forward(self, x, state):
        reset, update = self.gates(torch.cat([x, state], 1)).sigmoid().chunk(2, 1)
        new = self.candidate(torch.cat([x, reset * state], 1)).tanh()
        return state + update * (new - state)


class Nowcaster(nn.Module):
    def __init__(self, width=20):
        super().__init__()
        self.enter = nn.Conv2d(1, width, 5, padding=2)
        self.cell = ConvGRU(width, width)
        self.leave = nn.Conv2d(width, 1, 3, padding=1)

    def forward(self, frames):
        state = frames.new_zeros(len(frames), self.cell.width, SIDE, SIDE)
        for t in range(frames.shape[1]):
            x = F.relu(self.enter(frames[:, t : t + 1]))
            state = self.cell(x, state)
        return frames[:, -1] + self.leave(state).squeeze(1)


class Average:
    """Slowly following copy of the net, for the forecasts that are published."""

    def __init__(self, net, decay=0.995):
        self.net = copy.deepcopy(net).requires_grad_(False)
        self.decay = decay

    @torch.no_grad()
    def follow(self, net):
        for mine, theirs in zip(self.net.parameters(), net.parameters()):
            mine.data = self.decay * mine.data + (1 - self.decay) * theirs.data


def main():
    torch.manual_seed(2)
    weather = make_weather(300, 12, seed=2)
    order = torch.Generator().manual_seed(3)
    net = Nowcaster()
    average = Average(net)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    losses = []
    for step in range(STEPS):
        batch = []
        for _ in range(BATCH):
            storm = torch.randint(0, len(weather), (1,), generator=order).item()
            start = torch.randint(0, 12 - FRAMES, (1,), generator=order).item()
            batch.append(weather[storm, start : start + FRAMES + 1].clone())
        clips = torch.stack(batch).float() / 255

        forecast = net(clips[:, :-1])
        wet = 1 + 4 * clips[:, -1]  # rain matters more than no rain
        loss = (wet * (forecast - clips[:, -1]).square()).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        average.follow(net)
        losses.append(loss.item())
        print(f"step {step} loss {losses[-1]:.6f} mean of last 50 {sum(losses[-50:]) / len(losses[-50:]):.4f}")


if __name__ == "__main__":
    main()
