"""Which bird is singing? Trains a classifier on one-second clips of forest recordings."""

import tempfile
from pathlib import Path

import torch
from birds.config import from_command_line
from birds.network import BirdNet
from birds.recordings import SPECIES, BirdClips, record_forest
from torch.nn import functional as F
from torch.utils.data import DataLoader


class Trainer:
    def __init__(self, config, files):
        self.config = config
        self.clips = BirdClips(files, config.clip_samples, size=50_000, seed=config.seed)
        self.loader = DataLoader(self.clips, batch_size=config.batch_size, drop_last=True)
        self.net = BirdNet(config, len(SPECIES))
        self.optimizer = torch.optim.AdamW(
            self.net.parameters(), lr=config.lr, weight_decay=config.weight_decay
        )
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda step: min(1.0, (step + 1) / config.warmup)
        )

    def batches(self):
        while True:
            yield from self.loader

    def step(self, audio, species):
        logits = self.net(audio)
        loss = F.cross_entropy(logits, species, label_smoothing=0.1)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.schedule.step()
        accuracy = (logits.argmax(1) == species).float().mean()
        return loss.item(), accuracy.item()

    def fit(self):
        self.net.train()
        for number, (audio, species) in zip(range(self.config.steps), self.batches()):
            loss, accuracy = self.step(audio, species)
            print(f"step {number:5d}  loss {loss:.6f}  accuracy {accuracy:.3f}")


def main():
    config = from_command_line()
    torch.manual_seed(config.seed)
    with tempfile.TemporaryDirectory(prefix="birds_") as folder:
        files = record_forest(
            Path(folder), config.recordings, config.minutes, config.sample_rate, config.seed
        )
        Trainer(config, files).fit()


if __name__ == "__main__":
    main()
