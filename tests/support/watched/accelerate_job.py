"""A loop in the style of Accelerate's examples, on two ranks."""

import os
import sys

import torch
import traces
from accelerate import Accelerator


def main(directory):
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    traces.seed()
    rows = torch.utils.data.TensorDataset(torch.randn(512, 16), torch.randint(0, 4, (512,)))
    loader = torch.utils.data.DataLoader(rows, batch_size=8, shuffle=True)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    losses = []
    while len(losses) < 400:
        for x, y in loader:
            with accelerator.accumulate(model):
                loss = torch.nn.functional.cross_entropy(model(x), y)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item())
    traces.leave(directory, losses, accelerator.unwrap_model(model))


main(sys.argv[1])
torch.distributed.barrier()
# Threads of gloo may abort the interpreter while it ends, with us or without.
os._exit(0)
