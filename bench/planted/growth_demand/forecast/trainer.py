import torch
from torch.nn import functional as F


class Trainer:
    def __init__(self, model, callbacks, lr, steps, clip):
        self.model = model
        self.callbacks = callbacks
        self.steps, self.clip, self.lr = steps, clip, lr
        self.optimizer = torch.optim.Adam(model.parameters(), lr=lr, fused=True)
        self.step = 0

    def call(self, event, *args):
        for callback in self.callbacks:
            getattr(callback, event)(self, *args)

    def training_step(self, batch):
        forecast = self.model(batch["past"])
        loss = F.smooth_l1_loss(forecast, batch["future"])
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimizer.step()
        return {"loss": loss.item(), "forecast": forecast.detach()}

    def fit(self, data):
        self.call("on_fit_start")
        for batch in data:
            if self.step >= self.steps:
                break
            self.call("on_step_start", batch)
            outputs = self.training_step(batch)
            self.step += 1
            self.call("on_step_end", batch, outputs)
