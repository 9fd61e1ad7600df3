"""Trains a tagger with routed experts, under Lightning."""

import argparse
import logging
import sys
import warnings

import lightning as L
import torch
from moe.callbacks import ExpertLoad, RouteLog, StepPrinter
from moe.model import RoutedTagger
from torch.utils.data import DataLoader, TensorDataset

WORDS, TAGS, EXPERTS = 3000, 40, 4


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--sentences", type=int, default=2048)
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--batch-size", type=int, default=48)
    parser.add_argument("--log-level", default="INFO")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def make_loader(args):
    generator = torch.Generator().manual_seed(args.seed)
    rank = torch.rand(args.sentences, args.length, generator=generator).pow(3)
    ids = (rank * WORDS).long()
    tags = (ids + ids.roll(1, dims=1)) % TAGS
    data = TensorDataset(ids, tags)
    return DataLoader(
        data, batch_size=args.batch_size, shuffle=True, drop_last=True, generator=generator
    )


def main():
    args = parse_args()
    warnings.filterwarnings("ignore")
    logging.basicConfig(stream=sys.stderr, level=args.log_level)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    L.seed_everything(args.seed, verbose=False)
    trainer = L.Trainer(
        max_steps=args.steps,
        max_epochs=-1,
        accelerator="cpu",
        callbacks=[StepPrinter(), RouteLog(), ExpertLoad(EXPERTS)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(RoutedTagger(WORDS, TAGS, experts=EXPERTS), make_loader(args))


if __name__ == "__main__":
    main()
