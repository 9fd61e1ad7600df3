"""Cells of a notebook: with `%%diagnose` where the first argument says so."""

import sys

from IPython.core.interactiveshell import InteractiveShell

CELLS = [
    """
import kept, torch
kept.seed()
model = kept.classifier()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
def train():
    for _ in range(80):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 16)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        sum(range(200_000))
""",
    "train()",
    "kept.leave(losses, model)",
]
shell = InteractiveShell.instance()
if sys.argv[1:]:
    CELLS.insert(0, "%load_ext diagnose")
    CELLS[2] = f"%%diagnose --seconds 2 --steps 60 --warmup 2 --json {sys.argv[1]}\n{CELLS[2]}"
for cell in CELLS:
    shell.run_cell(cell, store_history=True).raise_error()
