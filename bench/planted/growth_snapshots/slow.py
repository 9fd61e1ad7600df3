"""Semi-supervised recognition of activities: a student agrees with the average of itself."""

import argparse
import copy
import logging

import torch
from averaging import WeightAverage
from data import Activities, jitter
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

log = logging.getLogger("activities")


class Recogniser(nn.Module):
    def __init__(self, activities=6, width=48):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv1d(3, width, 7, padding=3),
            nn.ReLU(),
            nn.Conv1d(width, width, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.Conv1d(width, 2 * width, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.AdaptiveAvgPool1d(1),
            nn.Flatten(),
        )
        self.head = nn.Linear(2 * width, activities)

    def forward(self, series):
        return self.head(self.features(series))


class Trainer:
    def __init__(self, args):
        self.args = args
        self.student = Recogniser()
        self.teacher = copy.deepcopy(self.student)
        self.average = WeightAverage(self.student, self.teacher)
        self.optimizer = torch.optim.AdamW(self.student.parameters(), lr=args.learning_rate)
        self.generator = torch.Generator().manual_seed(args.seed)
        self.loader = DataLoader(Activities(4000), args.batch_size, shuffle=True, drop_last=True)

    def weight(self, step):
        """The agreement counts for more as the teacher gets better."""
        return self.args.consistency * min(1.0, step / 100)

    def step(self, step, series, labels):
        noisy = jitter(series, self.args.jitter, self.generator)
        logits = self.student(noisy)
        with torch.no_grad():
            wanted = self.teacher(series).softmax(dim=1)
        supervised = F.cross_entropy(logits, labels, ignore_index=-1)
        agreement = F.mse_loss(logits.softmax(dim=1), wanted)
        loss = supervised + self.weight(step) * agreement
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.average.update()
        return loss.item()

    def run(self):
        step = 0
        while step < self.args.steps:
            for series, labels in self.loader:
                loss = self.step(step, series, labels)
                print(f"step {step} loss {loss:.6f}")
                step += 1
                if step % 500 == 0:
                    log.info("the student is %.3f away", self.average.distance())
                if step == self.args.steps:
                    break


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--batch-size", type=int, default=112)
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--consistency", type=float, default=5.0)
    parser.add_argument("--jitter", type=float, default=0.2)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    arguments = parse()
    torch.manual_seed(arguments.seed)
    torch.set_num_threads(1)
    Trainer(arguments).run()
