"""A trainer for any model, with checkpoints to resume from."""

import os

import torch

SAVE_EVERY = 1000


class Trainer:
    def __init__(self, model, optimizer, compute_loss, output_dir):
        self.model, self.optimizer, self.compute_loss = model, optimizer, compute_loss
        self.output_dir = output_dir
        self.step = 0

    def fit(self, batches, max_steps):
        self.model.train()
        while self.step < max_steps:
            loss = self.training_step(batches[self.step % len(batches)])
            print(f"step {self.step}/{max_steps} - loss: {loss:.6f}")
            self.step += 1
            if self.step % SAVE_EVERY == 0:
                self.save_checkpoint()

    def training_step(self, batch):
        loss = self.compute_loss(self.model, batch)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def save_checkpoint(self):
        state = {
            "step": self.step,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }
        torch.save(state, os.path.join(self.output_dir, "last.pt"))
