import numpy as np
import pandas as pd


class Callback:
    def on_fit_start(self, trainer): ...

    def on_step_start(self, trainer, batch): ...

    def on_step_end(self, trainer, batch, outputs): ...


class LearningRate(Callback):
    def __init__(self, warmup):
        self.warmup = warmup

    def on_step_start(self, trainer, batch):
        factor = min(1.0, (trainer.step + 1) / self.warmup)
        for group in trainer.optimizer.param_groups:
            group["lr"] = trainer.lr * factor


class ShopErrors(Callback):
    """Mean absolute error of every shop since the start, to see which shops are hard."""

    def __init__(self, names):
        self.names = names
        self.table = pd.DataFrame({"shop": [], "ahead": [], "error": []})
        self.by_shop = None

    def rows(self, batch, outputs):
        error = (outputs["forecast"] - batch["future"]).abs().double().numpy()
        count, horizon = error.shape
        return pd.DataFrame(
            {
                "shop": self.names[batch["shop"].numpy()].repeat(horizon),
                "ahead": np.tile(np.arange(1, horizon + 1), count),
                "error": error.reshape(-1),
            }
        )

    def on_step_end(self, trainer, batch, outputs):
        new = self.rows(batch, outputs)
        self.table = pd.concat([self.table, new], ignore_index=True)  # culprit: growth
        self.by_shop = self.table.groupby("shop")["error"].mean()  # cost: growth

    @property
    def worst(self):
        shop = self.by_shop.idxmax()
        return shop, self.by_shop[shop]


class Printer(Callback):
    def __init__(self, errors):
        self.errors = errors

    def on_step_end(self, trainer, batch, outputs):
        shop, error = self.errors.worst
        print(f"step {trainer.step} | loss {outputs['loss']:.6f} | worst {shop} mae {error:.4f}")
