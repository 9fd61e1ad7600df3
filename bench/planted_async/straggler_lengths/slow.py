"""Fits a tagger on two ranks (torchrun); a batch of sentences is sorted and split between them."""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import pad_sequence

WORDS, TAGS, WIDTH, BATCH, BATCHES = 500, 20, 64, 16, 8
device = torch.accelerator.current_accelerator()


def make_sentences(seed):
    random = torch.Generator().manual_seed(seed)
    lengths = torch.randint(8, 64, (BATCH,), generator=random)
    return [torch.randint(WORDS, (length,), generator=random) for length in lengths.tolist()]


def share_of(sentences, rank, ranks):
    """Sentences of like length need little padding."""
    ordered = sorted(sentences, key=len)
    share = len(ordered) // ranks
    mine = ordered[rank * share : (rank + 1) * share]  # culprit: straggler
    return pad_sequence(mine, batch_first=True).to(device)


class Tagger(nn.Module):
    """Looks at each word by itself."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.Sequential(
            nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, TAGS)
        )

    def forward(self, words):
        return self.layers(self.embed(words))


def train(rank, ranks, steps):
    batches = [share_of(make_sentences(seed), rank, ranks) for seed in range(BATCHES)]
    torch.manual_seed(0)
    model = DistributedDataParallel(Tagger().to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        words = batches[step % BATCHES]
        loss = nn.functional.cross_entropy(model(words).flatten(0, 1), words.flatten() % TAGS)
        optimizer.zero_grad()
        loss.backward()  # cost: straggler
        optimizer.step()
    if rank == 0:
        print(f"loss {loss.item():.6f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("fakeccl")
    train(dist.get_rank(), dist.get_world_size(), args.steps)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
