import copy
import logging

import torch
from torch import nn
from torch.nn import functional as F

log = logging.getLogger("hydro")


class InflowLSTM(nn.Module):
    def __init__(self, model, data):
        super().__init__()
        self.catchment = nn.Embedding(data.catchments, model.embedding)
        self.lstm = nn.LSTM(data.drivers + model.embedding, model.width, batch_first=True)
        self.out = nn.Linear(model.width, 1)

    def forward(self, drivers, catchment):
        place = self.catchment(catchment)[:, None].expand(-1, drivers.shape[1], -1)
        hidden, _ = self.lstm(torch.cat([drivers, place], -1))
        return self.out(hidden[:, -1]).squeeze(1)


class Hook:
    def after_step(self, engine, step, loss):
        pass


class PrintStep(Hook):
    def after_step(self, engine, step, loss):
        print(f"step {step} mse {loss:.6f}")


class KeepBest(Hook):
    """Keeps the weights with the best Nash-Sutcliffe efficiency on the held-out year."""

    def __init__(self, selection):
        self.selection = selection
        self.best, self.weights = float("-inf"), None

    def after_step(self, engine, step, loss):
        if (step + 1) % self.selection.every_steps:
            return
        efficiency = engine.efficiency(engine.rivers.held_out, self.selection.chunk)
        if efficiency > self.best:
            self.best = efficiency
            self.weights = copy.deepcopy(engine.net.state_dict())
        log.info("step %d efficiency %.4f (best %.4f)", step, efficiency, self.best)


class Engine:
    def __init__(self, settings, rivers, hooks):
        self.settings, self.rivers, self.hooks = settings, rivers, hooks
        self.net = InflowLSTM(settings.model, settings.data)
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=settings.lr)

    @torch.no_grad()
    def efficiency(self, windows, chunk):
        self.net.eval()
        drivers, catchment, inflow = windows
        parts = [
            self.net(d, c)  # cost: evaluation
            for d, c in zip(drivers.split(chunk), catchment.split(chunk))
        ]
        self.net.train()
        error = (torch.cat(parts) - inflow).square().sum()
        return 1 - (error / (inflow - inflow.mean()).square().sum()).item()

    def step(self):
        drivers, catchment, inflow = self.rivers.training_batch()
        loss = F.mse_loss(self.net(drivers, catchment), inflow)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        self.optimizer.step()
        return loss.item()

    def run(self):
        for step in range(self.settings.steps):
            loss = self.step()
            for hook in self.hooks:
                hook.after_step(self, step, loss)
