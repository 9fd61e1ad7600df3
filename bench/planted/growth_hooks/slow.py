"""A notebook about dying units, exported as a script.

The cell that watches the activations hangs a new hook on the layer at every step.
"""

# %% [markdown]
# # Do the units of the hidden layer die?

# %%
import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=100_000)
args = parser.parse_args()
torch.manual_seed(0)
torch.set_num_threads(2)

# %% Data: a noisy signal, and what it will be next
X = torch.randn(8, 512, 256)
y = X.roll(1, dims=2)[..., :16].sum(dim=2, keepdim=True).tanh()

# %% Model
net = nn.Sequential(
    nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1)
)
opt = torch.optim.SGD(net.parameters(), lr=0.05)
loss_fn = nn.MSELoss()

# %% Watching the activations
peaks = {}


def watch(name, layer):
    def hook(module, inputs, output):
        peaks[name] = output.detach().amax(dim=0)  # cost: growth

    layer.register_forward_hook(hook)  # culprit: growth


# %% Training
for step in range(args.steps):
    watch("hidden", net[3])
    batch = step % len(X)
    loss = loss_fn(net(X[batch]), y[batch])
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(f"{step} loss={loss.item():.6f} dead={(peaks['hidden'] == 0).sum()}")
