"""Predicts how well molecules dissolve, on several ranks (torchrun); a batch is split among them.

torchrun --nproc-per-node 2 slow.py
"""

import argparse
import logging
from dataclasses import dataclass

import torch
import torch.distributed as dist
from molecules import join, make_molecules
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

log = logging.getLogger("molecules")


@dataclass
class Config:
    batch_size: int = 48
    batches: int = 6
    atoms: int = 16
    width: int = 96
    rounds: int = 3
    lr: float = 1e-3


class MessageNetwork(nn.Module):
    """Atoms tell their neighbours what they know, several times."""

    def __init__(self, config):
        super().__init__()
        self.embed = nn.Embedding(config.atoms, config.width)
        self.message = nn.ModuleList(
            nn.Linear(2 * config.width, config.width) for _ in range(config.rounds)
        )
        self.update = nn.ModuleList(
            nn.Linear(2 * config.width, config.width) for _ in range(config.rounds)
        )
        self.head = nn.Linear(config.width, 1)

    def forward(self, batch):
        state = self.embed(batch.atoms)
        for message, update in zip(self.message, self.update, strict=True):
            both = torch.cat([state[batch.sources], state[batch.targets]], dim=1)
            told = torch.zeros_like(state).index_add(0, batch.targets, F.relu(message(both)))
            state = state + F.relu(update(torch.cat([state, told / 4], dim=1)))
        summed = torch.zeros(batch.count, state.shape[1]).index_add(0, batch.owner, state)
        return self.head(summed / 20).squeeze(1)


def share_of(molecules, rank, ranks):
    """The part of a batch that a rank works on; neighbours in size pad well together."""
    ordered = sorted(molecules, key=lambda molecule: len(molecule.atoms))
    share = len(ordered) // ranks
    return join(ordered[rank * share : (rank + 1) * share])  # culprit: straggler


def train(config, steps):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    batches = [
        share_of(make_molecules(config.batch_size, config.atoms, seed), rank, ranks)
        for seed in range(config.batches)
    ]
    log.info("rank %d has %d atoms", rank, sum(len(batch.atoms) for batch in batches))
    torch.manual_seed(0)
    model = DistributedDataParallel(MessageNetwork(config))
    optimizer = torch.optim.Adam(model.parameters(), lr=config.lr)
    for step in range(steps):
        batch = batches[step % len(batches)]
        loss = F.mse_loss(model(batch), batch.solubility)
        optimizer.zero_grad()
        loss.backward()  # cost: straggler
        optimizer.step()
        mean = loss.detach()
        dist.all_reduce(mean)
        if rank == 0:
            print(f"step {step} loss {mean.item() / ranks:.6f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--width", type=int, default=Config.width)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    train(Config(width=args.width), args.steps)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
