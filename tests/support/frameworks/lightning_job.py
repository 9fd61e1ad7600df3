"""A LightningModule under its Trainer. `slow` plants a cause."""

import sys
import time

import kept
import lightning
import torch

PLANTED = sys.argv[1] if sys.argv[1:] else ""


class Slow(torch.utils.data.Dataset):
    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        time.sleep(0.002)  # slow item
        return self.rows[index]


class Job(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = kept.classifier()
        self.losses = []

    def training_step(self, batch):
        x, y = batch
        out = self.model(x)
        if PLANTED == "sync":
            for row in out.detach().flatten().repeat(20):
                self.largest = max(0.0, row.item())  # reads one by one
        loss = torch.nn.functional.cross_entropy(out, y)
        self.losses.append(loss.detach())
        self.log("loss", loss)
        return loss

    def validation_step(self, batch):
        x, y = batch
        self.log("right", (self.model(x).argmax(1) == y).float().mean())  # validates

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def main():
    kept.seed()
    rows = kept.digits()
    train = Slow(rows) if PLANTED == "input" else rows
    held_out = kept.digits(800) if PLANTED == "evaluation" else rows
    trainer = lightning.Trainer(
        max_steps=100_000 if PLANTED else 100,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        val_check_interval=2 if PLANTED == "evaluation" else 1.0,
    )
    job = Job()
    trainer.fit(
        job,
        torch.utils.data.DataLoader(train, batch_size=8, shuffle=True),
        torch.utils.data.DataLoader(held_out, batch_size=16),
    )
    kept.leave(job.losses, job.model)


main()
