"""Trains a classifier that routes support tickets to departments.

Tickets are cut into word pieces once, before the training.
"""

import argparse
import random

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

SYLLABLES = [a + b for a in "bcdfghklmnprstvz" for b in "aeiou"]
MAX_LENGTH = 64


class WordPieceTokenizer:
    def __init__(self):
        pieces = ["[PAD]", "[UNK]", *SYLLABLES]
        pieces += [a + b for a in SYLLABLES[::3] for b in SYLLABLES[::2]]
        self.vocab = {piece: i for i, piece in enumerate(pieces)}

    def encode(self, text):
        ids = []
        for word in text.lower().split():
            start = 0
            while start < len(word):
                end = len(word)
                while end > start and word[start:end] not in self.vocab:
                    end -= 1
                ids.append(self.vocab.get(word[start:end], 1))
                start = max(end, start + 1)
        ids = ids[:MAX_LENGTH]
        return ids + [0] * (MAX_LENGTH - len(ids))


class TicketDataset(Dataset):
    def __init__(self, texts, departments, tokenizer):
        self.input_ids = torch.tensor([tokenizer.encode(text) for text in texts])
        self.departments = departments

    def __len__(self):
        return len(self.departments)

    def __getitem__(self, idx):
        return {"input_ids": self.input_ids[idx], "label": self.departments[idx]}


class TicketModel(nn.Module):
    def __init__(self, vocab_size, hidden=128, departments=12):
        super().__init__()
        self.embed = nn.Embedding(vocab_size, hidden)
        self.conv = nn.Conv1d(hidden, hidden, 5, padding=2)
        self.head = nn.Linear(hidden, departments)

    def forward(self, input_ids):
        hidden = F.relu(self.conv(self.embed(input_ids).transpose(1, 2)))
        return self.head(hidden.amax(dim=2))


def write_tickets(count):
    rng = random.Random(0)
    words = ["".join(rng.choices(SYLLABLES, k=rng.randint(2, 6))) for _ in range(5000)]
    texts = [" ".join(rng.choices(words, k=40)) for _ in range(count)]
    return texts, [rng.randrange(12) for _ in texts]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(2)
    tokenizer = WordPieceTokenizer()
    dataset = TicketDataset(*write_tickets(2048), tokenizer)
    loader = DataLoader(dataset, batch_size=64, shuffle=True, drop_last=True)
    model = TicketModel(len(tokenizer.vocab))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    step = 0
    while step < args.steps:
        for batch in loader:
            logits = model(batch["input_ids"])
            loss = F.cross_entropy(logits, batch["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(f"step {step:>6}  loss {loss.item():.6f}")
            step += 1
            if step == args.steps:
                break


if __name__ == "__main__":
    main()
