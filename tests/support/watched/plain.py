"""A plain training loop: shuffled data in workers, dropout, evaluations, checkpoints, a log."""

import os
import random
import sys

import numpy
import torch
import traces

STEPS = 200


class Rows(torch.utils.data.Dataset):
    calls = 0

    def __len__(self):
        return 256

    def __getitem__(self, index):
        Rows.calls += 1
        noise = numpy.random.standard_normal(16) + random.random()
        return torch.tensor(noise, dtype=torch.float32) + index / 256, index % 4


def main(directory):
    traces.seed()
    model = torch.nn.Sequential(
        torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(32, 4)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loader = torch.utils.data.DataLoader(Rows(), batch_size=16, shuffle=True)
    losses = []
    while len(losses) < STEPS:
        for x, y in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if len(losses) % 20 == 0:
                model.eval()
                with torch.no_grad():
                    right = model(torch.randn(64, 16)).argmax(1).float().mean()
                model.train()
                torch.save(model.state_dict(), os.path.join(directory, "last.pt"))
                with open(os.path.join(directory, "log.csv"), "a") as log:
                    log.write(f"{len(losses)},{loss.item()},{right.item()}\n")
    traces.leave(directory, losses, model, calls=Rows.calls)


main(sys.argv[1])
