"""The server: sends weights to the hospitals in turn and averages what comes back."""

import copy
import logging

import torch

log = logging.getLogger(__name__)


class Server:
    def __init__(self, model, clients, local_steps):
        self.model = model
        self.clients = clients
        self.local_steps = local_steps
        self.steps = 0

    def train(self, steps):
        while self.steps < steps:
            returned = []
            for client in self.clients:
                if self.steps == steps:
                    break
                local = copy.deepcopy(self.model)
                client.start_round(local)
                for _ in range(min(self.local_steps, steps - self.steps)):
                    loss = client.local_step(local)
                    print(f"step {self.steps} loss {loss:.6f}")
                    self.steps += 1
                returned.append(local)
                log.debug("%s is done", client.name)
            self.average(returned)

    @torch.no_grad()
    def average(self, models):
        for target, *sources in zip(
            self.model.parameters(), *(model.parameters() for model in models), strict=True
        ):
            target.copy_(torch.stack(sources).mean(dim=0))
