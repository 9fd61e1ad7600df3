"""Writes text with a small model; there is no optimiser, and a step is one more token.

Tokens that were written before are made less likely, one by one.
"""

import argparse

import torch
from torch import nn

WORDS, WIDTH, WINDOW, BATCH, PENALTY = 4000, 128, 64, 48, 1.2


class Writer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, batch_first=True, dropout=0.0)
        self.body = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, ids):
        return self.head(self.body(self.embed(ids))[:, -1])


def penalise(scores, ids):
    for row in range(len(ids)):
        for word in set(ids[row].tolist()):
            scores[row, word] /= PENALTY  # culprit: launch
    return scores


@torch.no_grad()
def write(model, ids, steps):
    for step in range(steps):
        scores = penalise(model(ids).exp(), ids)
        chosen = scores.argmax(dim=1, keepdim=True)
        ids = torch.cat([ids[:, 1:], chosen], dim=1)
        print(f"token {step} score {scores.gather(1, chosen).mean().item():.6f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(2)
    write(Writer().eval(), torch.randint(WORDS, (BATCH, WINDOW)), args.steps)


if __name__ == "__main__":
    main()
