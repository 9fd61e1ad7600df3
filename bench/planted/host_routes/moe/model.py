"""A layer of experts: every token goes to the two its gate likes best."""

import lightning as L
import torch
from torch import nn
from torch.nn import functional as F


class Experts(nn.Module):
    def __init__(self, width, hidden, experts):
        super().__init__()
        self.gate = nn.Linear(width, experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, width))
            for _ in range(experts)
        )

    def forward(self, tokens):
        weights, chosen = self.gate(tokens).softmax(dim=-1).topk(2, dim=-1)
        mixed = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            token, rank = (chosen == number).nonzero(as_tuple=True)
            mixed = mixed.index_add(0, token, weights[token, rank, None] * expert(tokens[token]))
        return tokens + mixed, chosen, weights


class RoutedTagger(L.LightningModule):
    def __init__(self, words, tags, width=128, hidden=192, experts=4, lr=0.05):
        super().__init__()
        self.lr = lr
        self.embed = nn.Embedding(words, width)
        self.mix = nn.Linear(2 * width, width)
        self.routed = Experts(width, hidden, experts)
        self.head = nn.Linear(width, tags)

    def forward(self, ids):
        embedded = self.embed(ids)
        previous = embedded.roll(1, dims=1)
        tokens = torch.relu(self.mix(torch.cat([embedded, previous], dim=-1))).flatten(0, 1)
        tokens, chosen, weights = self.routed(tokens)
        return self.head(tokens), chosen, weights

    def training_step(self, batch, batch_idx):
        ids, tags = batch
        scores, chosen, weights = self(ids)
        loss = F.cross_entropy(scores, tags.flatten())
        return {"loss": loss, "chosen": chosen, "weights": weights.detach()}

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9)
