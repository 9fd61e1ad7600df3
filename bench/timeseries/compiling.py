"""Did torch.compile take effect? If it cannot work here, training goes on without it."""

from __future__ import annotations

from torch._dynamo.exc import TorchDynamoException
from torch._dynamo.utils import counters

from bench.timeseries.loader import Batch
from bench.timeseries.training import Trainer, accumulate_gradients


def fall_back_to_eager(trainer: Trainer, batch: Batch) -> str:
    """Compile by a first pass, forward and backward; what became of it, in one sentence.

    torch.compile itself only wraps: whether there is a compiler, and whether anything could be
    compiled, shows when a batch arrives.
    """
    counters.clear()
    trainer.model.train()
    try:
        accumulate_gradients(trainer, [batch])
    except TorchDynamoException as error:
        trainer.predict = trainer.model
        return f"torch.compile failed, going on without it: {_first_line(str(error))}"
    finally:
        trainer.optimizer.zero_grad()
    graphs = counters["stats"]["unique_graphs"]
    breaks = counters["graph_break"]
    told = f"torch.compile, mode {trainer.settings.compile}: {graphs} graphs compiled"
    if breaks:
        told += f", {sum(breaks.values())} breaks, the first: {_first_line(next(iter(breaks)))}"
    return told


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]
