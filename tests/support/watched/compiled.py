"""A compiled model: what the compiler did counts too."""

import sys

import torch
import torch._dynamo
import traces

traces.seed()
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4))
step_model = torch.compile(model, backend=sys.argv[2])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
losses = []
for step in range(200):
    x, y = torch.randn(8, 16), torch.randint(0, 4, (8,))
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(step_model(x), y)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    if step % 25 == 24:
        model.eval()
        with torch.no_grad():
            step_model(torch.randn(8, 16))
        model.train()
counters = torch._dynamo.utils.counters
frames = {key: dict(counters[key]) for key in ("frames", "graph_break", "stats", "recompiles")}
traces.leave(sys.argv[1], losses, model, frames=frames)
