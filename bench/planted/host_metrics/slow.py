"""Tags tokens; after every step the confusions are counted in a module of its own."""

import argparse

import torch
from metrics import accuracy, count_confusions
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

WORDS, TAGS = 4000, 24


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(2)
    words = torch.randint(WORDS, (512, 512))
    loader = DataLoader(TensorDataset(words, words % TAGS), batch_size=128)
    model = nn.Sequential(
        nn.Embedding(WORDS, 32), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, TAGS)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    step = 0
    while step < args.steps:
        for ids, tags in loader:
            scores = model(ids).flatten(0, 1)
            loss = F.cross_entropy(scores, tags.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            counts = count_confusions(scores.argmax(dim=1), tags.flatten())
            print(f"step {step} loss {loss.item():.6f} accuracy {accuracy(counts):.4f}")
            step += 1
            if step == args.steps:
                return


if __name__ == "__main__":
    main()
