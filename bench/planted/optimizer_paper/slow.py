"""Trains a generator against a critic, each with its own optimiser.

Adam is written down as in the paper, so that each of its formulas makes new tensors.
"""

import argparse

import torch
from torch import nn
from torch.nn import functional as F

NOISE, PIXELS, BATCH = 64, 784, 64


class PaperAdam(torch.optim.Optimizer):
    """Algorithm 1 of Kingma and Ba."""

    def __init__(self, parameters, lr=2e-5, betas=(0.5, 0.999), eps=1e-8):
        super().__init__(parameters, {"lr": lr, "betas": betas, "eps": eps})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                state = self.state[p]
                t = state["t"] = state.get("t", 0) + 1
                m = state["m"] = beta1 * state.get("m", 0) + (1 - beta1) * p.grad
                v = state["v"] = beta2 * state.get("v", 0) + (1 - beta2) * p.grad**2
                m_hat, v_hat = m / (1 - beta1**t), v / (1 - beta2**t)  # culprit: optimizer
                p -= group["lr"] * m_hat / (torch.sqrt(v_hat) + group["eps"])


def make_generator():
    return nn.Sequential(
        nn.Linear(NOISE, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, PIXELS)
    )


def make_critic():
    return nn.Sequential(
        nn.Linear(PIXELS, 1024),
        nn.LeakyReLU(0.2),
        nn.Linear(1024, 1024),
        nn.LeakyReLU(0.2),
        nn.Linear(1024, 1),
        nn.Flatten(0),
    )


def descend(loss, optimizer):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()  # cost: optimizer


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(2)
    images = torch.rand(8, BATCH, PIXELS)
    generator, critic = make_generator(), make_critic()
    generator_optimizer = PaperAdam(generator.parameters())
    critic_optimizer = PaperAdam(critic.parameters())
    for step in range(args.steps):
        fake = generator(torch.randn(BATCH, NOISE)).sigmoid()
        real_score, fake_score = critic(images[step % len(images)]), critic(fake.detach())
        critic_loss = F.softplus(-real_score).mean() + F.softplus(fake_score).mean()
        descend(critic_loss, critic_optimizer)
        generator_loss = F.softplus(-critic(fake)).mean()
        descend(generator_loss, generator_optimizer)
        print(f"step {step} critic {critic_loss.item():.6f} generator {generator_loss.item():.6f}")


if __name__ == "__main__":
    main()
