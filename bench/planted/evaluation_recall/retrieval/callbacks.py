"""What is watched while the towers are trained."""

import logging

import lightning
import torch

log = logging.getLogger(__name__)


class Progress(lightning.Callback):
    """One line per step, for the terminal and for grep."""

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_index):
        print(f"step {trainer.global_step - 1} loss {outputs['loss'].item():.6f}")


class Recall(lightning.Callback):
    """Recall of the held-out questions among all held-out passages; remembers the best."""

    def __init__(self, pairs, every, top=10, chunk=256):
        self.questions, self.passages = pairs
        self.every = every
        self.top = top
        self.chunk = chunk
        self.best = 0.0

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_index):
        if trainer.global_step % self.every:
            return
        recall = self.measure(module)
        if recall > self.best:
            self.best = recall
            log.debug("recall %.4f at step %d", recall, trainer.global_step)

    @torch.no_grad()
    def measure(self, module):
        module.eval()
        gallery = torch.cat([module.passages(part) for part in self.passages.split(self.chunk)])
        found = 0
        for start in range(0, len(self.questions), self.chunk):
            asked = module.questions(self.questions[start : start + self.chunk])  # cost: evaluation
            nearest = (asked @ gallery.T).topk(self.top, dim=1).indices
            right = torch.arange(start, start + len(asked)).unsqueeze(1)
            found += (nearest == right).any(dim=1).sum().item()
        module.train()
        return found / len(self.questions)
