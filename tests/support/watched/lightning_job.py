"""A module of Lightning on two ranks, with validation, a checkpoint and its CSV log."""

import os
import sys

import lightning
import torch
import traces
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger


class Job(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = torch.nn.Sequential(
            torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(32, 4)
        )
        self.losses = []

    def training_step(self, batch):
        x, y = batch
        loss = torch.nn.functional.cross_entropy(self.model(x), y)
        self.losses.append(loss.item())
        self.log("loss", loss)
        return loss

    def validation_step(self, batch):
        x, y = batch
        self.log("right", (self.model(x).argmax(1) == y).float().mean())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def main(directory):
    traces.seed()
    rows = torch.utils.data.TensorDataset(torch.randn(320, 16), torch.randint(0, 4, (320,)))
    loader = torch.utils.data.DataLoader(rows, batch_size=16, shuffle=True)
    held_out = torch.utils.data.DataLoader(rows, batch_size=64)
    job = Job()
    trainer = lightning.Trainer(
        max_steps=200,
        accelerator="cpu",
        logger=CSVLogger(directory, name="log"),
        callbacks=[ModelCheckpoint(directory, filename="best", monitor="right", mode="max")],
        enable_progress_bar=False,
        enable_model_summary=False,
        devices=2,
        strategy="ddp",
    )
    trainer.fit(job, loader, held_out)
    traces.leave(directory, job.losses, job.model)


main(sys.argv[1])
# Threads of gloo may abort the interpreter while it ends, with us or without.
os._exit(0)
