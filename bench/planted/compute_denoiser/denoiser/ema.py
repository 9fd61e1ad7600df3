"""A slow copy of the weights, from which pictures would be drawn."""

import copy

import torch


class Shadow:
    def __init__(self, model, decay=0.999):
        self.decay = decay
        self.model = copy.deepcopy(model).requires_grad_(False)

    @torch.no_grad()
    def follow(self, model):
        live = dict(model.named_parameters())
        for name, slow in self.model.named_parameters():
            slow.mul_(self.decay).add_(live[name].detach(), alpha=1 - self.decay)
