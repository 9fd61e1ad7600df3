"""Two towers, one for questions and one for passages, trained against each other."""

import lightning
import torch
from torch import nn
from torch.nn import functional as F


class Tower(nn.Module):
    def __init__(self, words, width, out):
        super().__init__()
        self.embedding = nn.EmbeddingBag(words, width, mode="mean")
        self.body = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, 2 * width), nn.GELU()
        )
        self.out = nn.Linear(2 * width, out)

    def forward(self, tokens):
        return F.normalize(self.out(self.body(self.embedding(tokens))), dim=-1)


class TwoTowers(lightning.LightningModule):
    def __init__(self, words=4000, width=384, out=128, learning_rate=1e-3, temperature=0.05):
        super().__init__()
        self.questions = Tower(words, width, out)
        self.passages = Tower(words, width, out)
        self.learning_rate = learning_rate
        self.temperature = temperature

    def training_step(self, batch, batch_index):
        questions, passages = batch
        scores = self.questions(questions) @ self.passages(passages).T / self.temperature
        return F.cross_entropy(scores, torch.arange(len(scores)))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.learning_rate, momentum=0.9)
