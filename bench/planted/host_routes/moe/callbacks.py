"""What is said about a run while it trains."""

import logging

from lightning.pytorch.callbacks import Callback

log = logging.getLogger("moe.routes")


def describe_routes(ids, chosen, weights):
    """For each word of the batch: how often it came, and which experts took it."""
    words = {}
    rows = zip(ids.flatten().tolist(), chosen.tolist(), weights.tolist(), strict=True)
    for word, experts, shares in rows:
        entry = words.setdefault(word, {"count": 0, "experts": {}})
        entry["count"] += 1
        for expert, share in zip(experts, shares, strict=True):
            entry["experts"][expert] = entry["experts"].get(expert, 0.0) + share  # cost: host
    lines = []
    for word, entry in sorted(words.items(), key=lambda item: -item[1]["count"]):
        routes = " ".join(
            f"{expert}:{share / entry['count']:.2f}"
            for expert, share in sorted(entry["experts"].items())
        )
        lines.append(f"{word:>6} x{entry['count']:<4} {routes}")
    return "\n".join(lines)


class RouteLog(Callback):
    """Writes the routes of every batch into the debug log."""

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        routes = describe_routes(batch[0], outputs["chosen"], outputs["weights"])  # culprit: host
        log.debug("step %d\n%s", trainer.global_step, routes)


class StepPrinter(Callback):
    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        print(f"step {trainer.global_step - 1} loss {outputs['loss'].item():.6f}", flush=True)


class ExpertLoad(Callback):
    """Warns when an expert gets nearly nothing."""

    def __init__(self, experts, every=200):
        self.experts, self.every = experts, every

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if trainer.global_step % self.every:
            return
        load = outputs["chosen"].flatten().bincount(minlength=self.experts)
        if load.min() < 0.01 * load.sum():
            log.warning("expert %d is starving: %s", int(load.argmin()), load.tolist())
