"""Fine-tunes a small encoder on product reviews with Lightning.

python slow.py --layers 2 --batch-size 32
"""

import argparse
import logging
import warnings

import lightning as L
import torch
from reviews.data import ReviewData
from reviews.model import ReviewModule


class PrintLoss(L.Callback):
    """One line per step."""

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        print(f"step {trainer.global_step - 1} loss {outputs['loss'].item():.6f}")


def build_parser():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--max-length", type=int, default=48)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=1)
    return parser


def main():
    args = build_parser().parse_args()
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
    L.seed_everything(args.seed, verbose=False)
    torch.set_num_threads(2)
    data = ReviewData(args.batch_size, args.max_length, args.seed)
    model = ReviewModule(
        vocabulary=len(data.tokenizer),
        width=args.width,
        layers=args.layers,
        max_length=args.max_length,
        lr=args.lr,
    )
    trainer = L.Trainer(
        accelerator="cpu",
        max_steps=args.steps,
        max_epochs=-1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        gradient_clip_val=1.0,
        callbacks=[PrintLoss()],
    )
    trainer.fit(model, datamodule=data)


if __name__ == "__main__":
    main()
