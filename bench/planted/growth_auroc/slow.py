"""Predicts which customers will leave, with Lightning; the AUROC stands beside the loss.

python slow.py --width 512
"""

import argparse
import logging
import warnings

import lightning as L
import torch
from customers import Customers
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader
from torchmetrics.classification import BinaryAUROC


class ChurnModule(L.LightningModule):
    """Embedded contracts beside numbers of use, and a perceptron."""

    def __init__(self, width, lr):
        super().__init__()
        self.lr = lr
        self.contracts = nn.Embedding(50, 16)
        self.layers = nn.Sequential(
            nn.Linear(Customers.numbers + 16, width),
            nn.SiLU(),
            nn.Linear(width, width),
            nn.SiLU(),
            nn.Linear(width, 1),
        )
        self.auroc = BinaryAUROC()
        self.latest = 0.5

    def forward(self, contract, numbers):
        return self.layers(torch.cat([self.contracts(contract), numbers], dim=1)).squeeze(1)

    def training_step(self, batch, batch_idx):
        contract, numbers, left = batch
        logits = self(contract, numbers)
        loss = F.binary_cross_entropy_with_logits(logits, left.float())
        self.auroc.update(logits.detach().sigmoid(), left)
        self.latest = self.auroc.compute().item()  # culprit: growth
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.lr, fused=True)


class Progress(L.Callback):
    """One line per step."""

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        step, loss = trainer.global_step - 1, outputs["loss"].item()
        print(f"step {step} loss {loss:.6f} auroc {module.latest:.3f}")


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--lr", type=float, default=1e-3)
    return parser.parse_args()


def main():
    args = parse_args()
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
    L.seed_everything(3, verbose=False)
    torch.set_num_threads(2)
    loader = DataLoader(
        Customers(10_000_000, args.batch_size), batch_size=None, num_workers=0, shuffle=False
    )
    trainer = L.Trainer(
        accelerator="cpu",
        max_steps=args.steps,
        max_epochs=-1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[Progress()],
    )
    trainer.fit(ChurnModule(args.width, args.lr), loader)


if __name__ == "__main__":
    main()
