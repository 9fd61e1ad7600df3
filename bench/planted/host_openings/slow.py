"""Learns an opening book: which move follows in this position?

    python slow.py [--verbose] [--batch-size 128] [--channels 32]
"""

import argparse
import logging
import os

import lightning as L
from opening_book.callbacks import Accuracy, PositionDiary, PrintLoss
from opening_book.module import OpeningModule
from opening_book.positions import OpeningPositions, same
from torch.utils.data import DataLoader


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--positions", type=int, default=20_000)
    parser.add_argument("--channels", type=int, default=32)
    parser.add_argument("--towers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=int(os.environ.get("STEPS", 20_000)))
    args = parser.parse_args()

    logging.basicConfig(format="%(name)s: %(message)s")
    logging.getLogger("opening_book").setLevel(logging.DEBUG if args.verbose else logging.INFO)

    L.seed_everything(64)
    loader = DataLoader(
        OpeningPositions(args.positions, seed=64),
        batch_size=args.batch_size,
        shuffle=True,
        drop_last=True,
        collate_fn=same,
    )
    trainer = L.Trainer(
        accelerator="cpu",
        max_steps=args.steps,
        max_epochs=-1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[PrintLoss(), PositionDiary(), Accuracy()],
    )
    trainer.fit(OpeningModule(args.channels, args.towers), loader)


if __name__ == "__main__":
    main()
