"""A loop that trains any model on batches that are dictionaries of tensors."""

import logging

import numpy as np
import torch

log = logging.getLogger(__name__)


def to_device(batch, device, dtype=torch.float32):
    """The same nested batch with every tensor on the device and of the type of the model."""
    if isinstance(batch, dict):
        return {name: to_device(value, device, dtype) for name, value in batch.items()}
    if isinstance(batch, (list, tuple)):
        return type(batch)(to_device(value, device, dtype) for value in batch)
    if torch.is_tensor(batch):
        values = np.array(batch, dtype=np.float64)
        return torch.tensor(values).to(device, dtype)  # culprit: transfer
    return batch


class Engine:
    def __init__(self, model, criterion, optimizer, device, clip=1.0):
        self.model = model.to(device)
        self.criterion = criterion
        self.optimizer = optimizer
        self.device = device
        self.clip = clip
        self.steps = 0

    def train_step(self, batch):
        self.model.train()
        batch = to_device(batch, self.device)
        predicted = self.model(batch["fields"], batch["hour"])
        loss = self.criterion(predicted, batch["target"])
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimizer.step()
        return loss.item()

    def fit(self, loader, steps):
        while self.steps < steps:
            for batch in loader:
                loss = self.train_step(batch)
                print(f"step {self.steps} loss {loss:.6f}")
                self.steps += 1
                if self.steps == steps:
                    log.info("done after %d steps", steps)
                    return
