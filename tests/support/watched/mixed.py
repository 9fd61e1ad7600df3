"""Mixed precision with a gradient scaler, two optimizers and accumulated gradients."""

import sys

import torch
import traces

traces.seed()
body, head = torch.nn.Linear(16, 32), torch.nn.Linear(32, 4)
optimizers = [torch.optim.SGD(body.parameters(), lr=0.1), torch.optim.Adam(head.parameters())]
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16, growth_interval=10)
losses = []
for step in range(200):
    for _ in range(2):
        x, y = torch.randn(8, 16), torch.randint(0, 4, (8,))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(head(body(x).relu()), y) / 2
        if step % 50 == 7:
            loss = loss * float("inf")  # the scaler leaves this step out
        scaler.scale(loss).backward()
    for optimizer in optimizers:
        scaler.step(optimizer)
        optimizer.zero_grad()
    scaler.update()
    losses.append(loss.item())
traces.leave(sys.argv[1], losses, torch.nn.ModuleList([body, head]), scale=scaler.get_scale())
