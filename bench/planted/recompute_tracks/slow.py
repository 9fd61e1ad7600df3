"""Learns smooth latent paths behind the sensor readings of tagged seals."""

import argparse
import logging
import sys
from collections import deque

import torch
from torch.utils.data import DataLoader, TensorDataset
from tracks.model import TrackVAE
from tracks.prior import SmoothPaths

log = logging.getLogger("tracks")


def make_readings(tracks, times, sensors, seed):
    generator = torch.Generator().manual_seed(seed)
    phase = 6.28 * torch.rand(tracks, 1, sensors, generator=generator)
    speed = 0.02 + 0.1 * torch.rand(tracks, 1, sensors, generator=generator)
    noise = torch.randn(tracks, len(times), sensors, generator=generator)
    return torch.sin(phase + speed * times[None, :, None]) + 0.2 * noise


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--tracks", type=int, default=512)
    parser.add_argument("--fixes", type=int, default=640)
    parser.add_argument("--sensors", type=int, default=9)
    parser.add_argument("--batch-size", type=int, default=6)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--warmup", type=int, default=500, help="steps until the prior counts")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def train(model, loader, args):
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, fused=True)
    recent = deque(maxlen=50)
    step = 0
    while step < args.steps:
        for (readings,) in loader:
            weight = min(1.0, (step + 1) / args.warmup)
            output = model(readings, weight)
            optimizer.zero_grad()
            output["loss"].backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            recent.append(output["error"].item())
            print(f"step {step} loss {output['loss'].item():.6f} error {recent[-1]:.2f}")
            step += 1
            if step == args.steps:
                return
        log.info("mean error of the last steps %.2f", sum(recent) / len(recent))


def main():
    args = parse_args()
    logging.basicConfig(stream=sys.stderr, level=logging.INFO)
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    # The tags report at uneven times, but all tags at the same ones.
    times = torch.cumsum(0.5 + torch.rand(args.fixes), dim=0)
    readings = make_readings(args.tracks, times, args.sensors, args.seed)
    loader = DataLoader(
        TensorDataset(readings), batch_size=args.batch_size, shuffle=True, drop_last=True
    )
    train(TrackVAE(SmoothPaths(times), args.sensors), loader, args)


if __name__ == "__main__":
    main()
