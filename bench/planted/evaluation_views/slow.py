"""Finds the edges of fields in satellite pictures with a small U-Net and Accelerate.

Every fortieth step looks at the validation pictures.
"""

import argparse
from dataclasses import dataclass

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from fields import FieldPictures, UNet, dice, from_all_sides
from torch.nn import functional as F
from torch.utils.data import DataLoader


@dataclass
class Config:
    batch_size: int = 8
    side: int = 48
    width: int = 12
    lr: float = 1e-3
    validate_every: int = 40
    validation_pictures: int = 96


@torch.no_grad()
def validate(model, loader):
    """The mean Dice score over the validation pictures, each seen from all sides."""
    model.eval()
    scores = []
    for pictures, edges in loader:
        found = from_all_sides(model, pictures)  # culprit: evaluation
        scores.append(dice(found, edges))
    model.train()
    return torch.cat(scores).mean().item()


def train(config, steps):
    accelerator = Accelerator(cpu=True)
    torch.set_num_threads(1)
    training = DataLoader(
        FieldPictures(2048, config.side, seed=1),
        batch_size=config.batch_size,
        num_workers=1,
        persistent_workers=True,
    )
    validation = DataLoader(
        FieldPictures(config.validation_pictures, config.side, seed=2),
        batch_size=16,
    )
    model = UNet(config.width)
    optimizer = torch.optim.Adam(model.parameters(), lr=config.lr)
    model, optimizer, training, validation = accelerator.prepare(
        model, optimizer, training, validation
    )
    step, score = 0, 0.0
    while True:
        for pictures, edges in training:
            loss = F.binary_cross_entropy_with_logits(model(pictures), edges)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            if step % config.validate_every == config.validate_every - 1:
                score = validate(model, validation)  # cost: evaluation
            print(f"step {step} loss {loss.item():.6f} dice {score:.4f}")
            step += 1
            if step == steps:
                return


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--width", type=int, default=Config.width)
    args = parser.parse_args()
    set_seed(0)
    train(Config(width=args.width), args.steps)


if __name__ == "__main__":
    main()
