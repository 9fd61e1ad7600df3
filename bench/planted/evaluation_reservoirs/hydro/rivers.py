"""Rain, snow and temperature drive the inflow into a reservoir (a leaky bucket per catchment)."""

import torch


class Rivers:
    def __init__(self, data, seed):
        g = torch.Generator().manual_seed(seed)
        self.data = data
        shape = (data.catchments, data.days)
        season = torch.sin(torch.arange(data.days) * 2 * torch.pi / 365)
        drivers = torch.randn(*shape, data.drivers, generator=g)
        drivers[..., 0] = torch.rand(shape, generator=g).pow(4) * 5  # rain
        drivers[..., 1] += 2 * season
        leak = torch.rand(data.catchments, generator=g) * 0.2 + 0.05
        bucket, inflow = torch.zeros(data.catchments), []
        for day in range(data.days):
            bucket = bucket * (1 - leak) + drivers[:, day, 0]
            inflow.append(bucket * leak)
        self.drivers = drivers
        self.inflow = torch.stack(inflow, 1)
        self.inflow = (self.inflow - self.inflow.mean()) / self.inflow.std()
        self.random = g
        # the last year is held out
        self.split = data.days - 365
        self.held_out = self.draw(data.held_out, self.split, data.days - data.history)

    def draw(self, count, first, last):
        catchment = torch.randint(0, self.data.catchments, (count,), generator=self.random)
        day = torch.randint(first, last, (count,), generator=self.random)
        days = day[:, None] + torch.arange(self.data.history)
        return (
            self.drivers[catchment[:, None], days],
            catchment,
            self.inflow[catchment, days[:, -1]],
        )

    def training_batch(self):
        return self.draw(self.data.batch, 0, self.split - self.data.history)
