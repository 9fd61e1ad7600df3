"""Trains two towers to find the passage that answers a question."""

import argparse
import logging
import warnings

import lightning
import torch
from retrieval.callbacks import Progress, Recall
from retrieval.model import TwoTowers
from torch.utils.data import DataLoader, TensorDataset

WORDS = 4000


def make_pairs(count, seed):
    """A question shares most of its words with its passage."""
    generator = torch.Generator().manual_seed(seed)
    passages = torch.randint(WORDS, (count, 48), generator=generator)
    noise = torch.randint(WORDS, (count, 16), generator=generator)
    shared = torch.rand(count, 16, generator=generator) < 0.6
    return torch.where(shared, passages[:, :16], noise), passages


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--batch-size", type=int, default=192)
    parser.add_argument("--learning-rate", type=float, default=0.05)
    parser.add_argument("--recall-every", type=int, default=4)  # culprit: evaluation
    parser.add_argument("--held-out", type=int, default=1280)
    return parser.parse_args()


def main():
    args = parse()
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(
        TensorDataset(*make_pairs(9600, seed=1)),
        batch_size=args.batch_size,
        shuffle=True,
        drop_last=True,
        generator=torch.Generator().manual_seed(2),
    )
    held_out = make_pairs(args.held_out, seed=3)
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_steps=args.steps,
        max_epochs=-1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[Recall(held_out, every=args.recall_every), Progress()],
    )
    trainer.fit(TwoTowers(WORDS, learning_rate=args.learning_rate), loader)


if __name__ == "__main__":
    main()
