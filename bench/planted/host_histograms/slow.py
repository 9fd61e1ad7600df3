"""Trains a denoising autoencoder whose hooks draw histograms of all gradients, at every step."""

import argparse

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F


class DenoisingAutoencoder(nn.Module):
    def __init__(self, features=1024, hidden=512, code=64):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, code)
        )
        self.decoder = nn.Sequential(
            nn.Linear(code, hidden), nn.ReLU(), nn.Linear(hidden, features)
        )
        self.global_step = 0
        self.logged = {}

    def forward(self, x):
        return self.decoder(self.encoder(x))

    def training_step(self, batch):
        noisy, clean = batch
        return F.mse_loss(self(noisy), clean)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def on_after_backward(self):
        for name, parameter in self.named_parameters():
            counts, edges = np.histogram(parameter.grad.numpy(), bins=64)  # culprit: host
            self.logged[f"gradients/{name}"] = (counts, edges)

    def on_train_batch_end(self, loss):
        print(f"step {self.global_step} train_loss {loss.item():.6f}")


def fit(module, batches, max_steps):
    optimizer = module.configure_optimizers()
    while module.global_step < max_steps:
        batch = batches[module.global_step % len(batches)]
        loss = module.training_step(batch)
        optimizer.zero_grad()
        loss.backward()
        module.on_after_backward()
        optimizer.step()
        module.on_train_batch_end(loss)
        module.global_step += 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(2)
    clean = torch.rand(8, 640, 1024)
    noisy = clean + 0.1 * torch.randn_like(clean)
    fit(DenoisingAutoencoder(), list(zip(noisy, clean, strict=True)), args.steps)
