"""Trains a GRU to tell good reviews from bad ones; its trainer saves it now and then."""

import argparse
import tempfile

import torch
from torch import nn
from torch.nn import functional as F
from trainer_fixed import Trainer

WORDS, LENGTH, BATCH = 20_000, 16, 24


class ReviewModel(nn.Module):
    def __init__(self, embedding=128, hidden=512):
        super().__init__()
        self.embed = nn.Embedding(WORDS, embedding)
        self.gru = nn.GRU(embedding, hidden, batch_first=True)
        self.head = nn.Linear(hidden, 2)

    def forward(self, reviews):
        return self.head(self.gru(self.embed(reviews))[0][:, -1])


def review_loss(model, batch):
    reviews, labels = batch
    return F.cross_entropy(model(reviews), labels)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(2)
    reviews = torch.randint(WORDS, (16, BATCH, LENGTH))
    labels = torch.randint(2, (16, BATCH))
    model = ReviewModel()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with tempfile.TemporaryDirectory() as output_dir:
        trainer = Trainer(model, optimizer, review_loss, output_dir)
        trainer.fit(list(zip(reviews, labels, strict=True)), args.steps)


if __name__ == "__main__":
    main()
