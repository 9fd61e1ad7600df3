"""A language model over letters with an LSTM written out by hand, hidden state carried along.

python slow.py --hidden 160 --length 40
"""

import argparse
from dataclasses import dataclass

import torch
from letters import Letters
from torch import nn
from torch.nn import functional as F


@dataclass
class Config:
    hidden: int = 192
    embedding: int = 96
    length: int = 40
    batch_size: int = 48
    lr: float = 2e-3
    clip: float = 1.0


class HandLSTM(nn.Module):
    """The equations as the paper has them."""

    def __init__(self, inputs, hidden):
        super().__init__()
        self.hidden = hidden
        self.forget = nn.Linear(inputs + hidden, hidden)
        self.insert = nn.Linear(inputs + hidden, hidden)
        self.candidate = nn.Linear(inputs + hidden, hidden)
        self.output = nn.Linear(inputs + hidden, hidden)

    def start(self, batch):
        return torch.zeros(batch, self.hidden), torch.zeros(batch, self.hidden)

    def forward(self, inputs, state):
        h, c = state
        outputs = []
        for x in inputs.unbind(1):
            both = torch.cat([x, h], dim=1)
            f = torch.sigmoid(self.forget(both))  # culprit: launch
            i = torch.sigmoid(self.insert(both))
            g = torch.tanh(self.candidate(both))
            o = torch.sigmoid(self.output(both))
            c = f * c + i * g
            h = o * torch.tanh(c)
            outputs.append(h)
        return torch.stack(outputs, dim=1), (h, c)


class LetterModel(nn.Module):
    def __init__(self, letters, config):
        super().__init__()
        self.embed = nn.Embedding(letters, config.embedding)
        self.lstm = HandLSTM(config.embedding, config.hidden)
        self.out = nn.Linear(config.hidden, letters)

    def forward(self, text, state):
        states, state = self.lstm(self.embed(text), state)
        return self.out(states), state


def detach(state):
    return tuple(part.detach() for part in state)


def train(config, steps):
    text = Letters(config.batch_size)
    model = LetterModel(text.letters, config)
    optimizer = torch.optim.Adam(model.parameters(), lr=config.lr)
    state = model.lstm.start(config.batch_size)
    for step in range(steps):
        batch = text.next(config.length + 1)
        logits, state = model(batch[:, :-1], detach(state))
        loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), config.clip)
        optimizer.step()
        print(f"step {step} loss {loss.item():.6f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--hidden", type=int, default=Config.hidden)
    parser.add_argument("--length", type=int, default=Config.length)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    train(Config(hidden=args.hidden, length=args.length), args.steps)


if __name__ == "__main__":
    main()
