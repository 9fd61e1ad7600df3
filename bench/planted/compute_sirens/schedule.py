"""A warm-up and a cosine, by hand, because the built-in ones do not chain as we want."""

import math


class WarmupCosine:
    def __init__(self, optimizer, warmup, total, floor=0.05):
        self.optimizer = optimizer
        self.warmup, self.total, self.floor = warmup, total, floor
        self.base = []
        for group in optimizer.param_groups:
            self.base.append(group["lr"])
        self.count = 0
        self.apply()

    def factor(self):
        if self.count < self.warmup:
            return (self.count + 1) / self.warmup
        done = min(1.0, (self.count - self.warmup) / max(1, self.total - self.warmup))
        return self.floor + (1 - self.floor) * 0.5 * (1 + math.cos(math.pi * done))

    def apply(self):
        for group, base in zip(self.optimizer.param_groups, self.base, strict=True):
            group["lr"] = base * self.factor()

    def step(self):
        self.count += 1
        self.apply()


def split_parameters(model, decay):
    """No decay for whatever has one dimension."""
    decayed, free = [], []
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1 or name.endswith("bias"):
            free.append(parameter)
        else:
            decayed.append(parameter)
    return [
        {"params": decayed, "weight_decay": decay},
        {"params": free, "weight_decay": 0.0},
    ]
