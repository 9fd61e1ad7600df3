"""A loop in the style of Accelerate's no_trainer examples. `slow` plants a cause."""

import sys
import time

import kept
import torch
from accelerate import Accelerator

PLANTED = sys.argv[1] if sys.argv[1:] else ""


class Slow(torch.utils.data.Dataset):
    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        time.sleep(0.002)  # slow item
        return self.rows[index]


def evaluate(accelerator, model, loader):
    model.eval()
    right = 0
    for x, y in loader:
        with torch.no_grad():
            right += (accelerator.gather_for_metrics(model(x).argmax(1)) == y).sum()
    return right


def main():
    kept.seed()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=1 if PLANTED else 2)
    rows = kept.digits()
    loader = torch.utils.data.DataLoader(
        Slow(rows) if PLANTED == "input" else rows, batch_size=8, shuffle=True
    )
    held_out = torch.utils.data.DataLoader(
        kept.digits(800) if PLANTED == "evaluation" else rows, batch_size=16
    )
    model = kept.classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer, loader, held_out = accelerator.prepare(model, optimizer, loader, held_out)
    losses, steps = [], 0
    while steps < (100_000 if PLANTED else 160):
        model.train()
        for x, y in loader:
            with accelerator.accumulate(model):
                out = model(x)
                if PLANTED == "sync":
                    for row in out.detach().flatten().repeat(20):
                        largest = max(0.0, row.item())  # reads one by one
                loss = torch.nn.functional.cross_entropy(out, y)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            steps += 1
            if not PLANTED:  # what grows would be a cause of its own
                losses.append(loss.item())
            if PLANTED == "evaluation" and steps % 2 == 0:
                evaluate(accelerator, model, held_out)  # too often
                model.train()
        evaluate(accelerator, model, held_out)
    kept.leave(losses, model)


main()
