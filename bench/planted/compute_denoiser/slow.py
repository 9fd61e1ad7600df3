"""Trains a denoiser on made-up stamps, with an average of its weights for sampling."""

import argparse
import collections
import logging
import statistics

import torch
from denoiser.ema import Shadow
from denoiser.model import Denoiser
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

log = logging.getLogger("denoiser")


class Stamps(Dataset):
    """Smooth random pictures, kept in one tensor."""

    def __init__(self, count, size, seed=0):
        generator = torch.Generator().manual_seed(seed)
        coarse = torch.randn(count, 1, size // 8, size // 8, generator=generator)
        self.pictures = F.interpolate(coarse, size=size, mode="bilinear").clamp(-1, 1)

    def __len__(self):
        return len(self.pictures)

    def __getitem__(self, index):
        return self.pictures[index]


def forever(loader):
    while True:
        yield from loader


def check(loss, step):
    value = loss.item()
    if value != value:
        raise RuntimeError(f"the loss of step {step} is not a number")
    return value


def train(model, shadow, loader, args):
    optimizer = torch.optim.Adam(model.parameters(), lr=args.learning_rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda at: min(1.0, (at + 1) / 100))
    noise_source = torch.Generator().manual_seed(args.seed)
    recent = collections.deque(maxlen=100)
    norms = []
    for step, pictures in zip(range(args.steps), forever(loader), strict=False):
        level = torch.rand(len(pictures), 1, generator=noise_source)
        noise = torch.randn(pictures.shape, generator=noise_source)
        noisy = pictures + level[:, :, None, None] * noise
        loss = F.mse_loss(model(noisy, level), noise)
        optimizer.zero_grad()
        loss.backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())
        optimizer.step()
        schedule.step()
        shadow.follow(model)
        recent.append(check(loss, step))
        print(f"step {step} loss {recent[-1]:.6f} mean {statistics.fmean(recent):.6f}")
        if len(norms) == 200:
            log.info("largest gradient of 200 steps: %.3f", max(norms))
            norms.clear()


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--batch-size", type=int, default=10)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--decay", type=float, default=0.999)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    arguments = parse()
    torch.manual_seed(arguments.seed)
    torch.set_num_threads(1)
    network = Denoiser()
    stamps = Stamps(512, arguments.size, arguments.seed)
    batches = DataLoader(stamps, arguments.batch_size, shuffle=True, num_workers=0)
    train(network, Shadow(network, arguments.decay), batches, arguments)
