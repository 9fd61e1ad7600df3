import numpy as np
import torch


class DemandData:
    """Sales of all shops with a weekly season, a trend and noise."""

    def __init__(self, shops, days, history, horizon, batch_size, seed):
        rng = np.random.default_rng(seed)
        day = np.arange(days)
        level = rng.uniform(1.0, 4.0, (shops, 1))
        season = np.sin(2 * np.pi * (day / 7.0 + rng.uniform(0, 1, (shops, 1))))
        trend = rng.normal(0, 0.5, (shops, 1)) * day / days
        noise = rng.normal(0, 0.3, (shops, days))
        self.sales = torch.tensor(level + season + trend + noise, dtype=torch.float32)
        self.names = np.array([f"store-{i:03d}" for i in range(shops)], dtype=object)
        self.history, self.horizon = history, horizon
        self.batch_size = batch_size
        self.generator = torch.Generator().manual_seed(seed)
        # (shop, start, window) is a view, nothing is copied here
        self.windows = self.sales.unfold(1, history + horizon, 1)

    def __iter__(self):
        shops, starts = self.windows.shape[:2]
        while True:
            shop = torch.randint(shops, (self.batch_size,), generator=self.generator)
            start = torch.randint(starts, (self.batch_size,), generator=self.generator)
            window = self.windows[shop, start]
            yield {
                "shop": shop,
                "past": window[:, : self.history],
                "future": window[:, self.history :],
            }
