"""Predicts rain from the fields of a coarse weather model, all of them made up."""

import argparse
import logging

import torch
from grids.engine import Engine
from grids.model import Downscaler
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Reanalysis(Dataset):
    """Batches of fields of successive hours, as the archive holds them."""

    def __init__(self, batches, batch_size, fields, size, patch, seed=0):
        generator = torch.Generator().manual_seed(seed)
        self.rows = []
        for number in range(batches):
            values = torch.randn(batch_size, fields, size, size, generator=generator)
            rain = nn.functional.avg_pool2d(values[:, :2].prod(dim=1, keepdim=True), patch)
            hours = (torch.arange(batch_size, dtype=torch.float32) + number * batch_size) % 24
            self.rows.append({"fields": values, "hour": hours, "target": 10 * rain.flatten(1)})

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--batch-size", type=int, default=12)
    parser.add_argument("--fields", type=int, default=16)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--patch", type=int, default=16)
    parser.add_argument("--learning-rate", type=float, default=5e-4)
    parser.add_argument("--device", default="cpu")
    return parser.parse_args()


def main():
    args = parse()
    logging.basicConfig(level=logging.INFO)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    archive = Reanalysis(8, args.batch_size, args.fields, args.size, args.patch)
    loader = DataLoader(archive, batch_size=None, shuffle=True)
    model = Downscaler(args.fields, args.size, args.patch)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
    engine = Engine(model, nn.HuberLoss(), optimizer, torch.device(args.device))
    engine.fit(loader, args.steps)


if __name__ == "__main__":
    main()
