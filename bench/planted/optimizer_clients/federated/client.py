"""One hospital: its patients, its copy of the model and how it takes a local step."""

import logging

import torch
from torch.nn import functional as F

log = logging.getLogger(__name__)


class Client:
    """Descends its own loss with momentum, held near the weights the server sent (FedProx)."""

    def __init__(self, name, rows, labels, args):
        self.name = name
        self.rows = rows
        self.labels = labels
        self.args = args
        self.momentum = None
        self.generator = torch.Generator().manual_seed(hash_name(name))

    def draw(self):
        chosen = torch.randint(len(self.rows), (self.args.batch_size,), generator=self.generator)
        return self.rows[chosen], self.labels[chosen]

    def start_round(self, model):
        self.anchor = [parameter.detach().clone() for parameter in model.parameters()]
        self.momentum = [torch.zeros_like(parameter) for parameter in self.anchor]

    def local_step(self, model):
        rows, labels = self.draw()
        loss = F.cross_entropy(model(rows), labels)
        model.zero_grad()
        loss.backward()
        self.descend(list(model.parameters()))
        return loss.item()

    @torch.no_grad()
    def descend(self, parameters):
        args = self.args
        for index, parameter in enumerate(parameters):
            pull = args.proximal * (parameter - self.anchor[index])
            decay = args.weight_decay * parameter
            gradient = parameter.grad + pull + decay
            velocity = args.momentum * self.momentum[index] + gradient
            self.momentum[index] = velocity
            parameter.copy_(parameter - args.learning_rate * velocity)  # culprit: optimizer


def hash_name(name):
    return sum(ord(letter) * (place + 1) for place, letter in enumerate(name))
