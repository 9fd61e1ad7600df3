"""How fast do batches arrive when nothing else has to be done?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from diagnose.measure.stages.batches import (
    LoaderConfig,
    batch_bytes,
    loading_variant,
    needed_bytes,
    open_batches,
    require_dataset,
    shared_memory_shortage,
)
from diagnose.measure.stages.plan import Context, Plan

# 0 is loading in the training process itself; 2, 4 and 8 are what people try.
WORKERS = (0, 2, 4, 8)


@contextmanager
def plan(context: Context) -> Iterator[Plan]:
    notes = []
    if context.device.is_cpu:
        notes.append("pin_memory: not applicable, there is no copy to a device")
    sizes = {storage: batch_bytes(context, storage) for storage in require_dataset(context)}
    with ExitStack() as opened:
        variants, claimed = [], 0
        for config in _configs(context):
            # All are open at once, and every one keeps its queue full.
            wanted = claimed + needed_bytes(config, sizes[config.storage])
            shortage = shared_memory_shortage(wanted) if config.workers else ""
            if shortage:
                notes.append(f"{config.name}: not measured, {shortage}")
                continue
            claimed = wanted
            source = opened.enter_context(open_batches(context, config))
            variants.append(loading_variant(context, config, source))
        yield Plan(variants, notes)


def _configs(context: Context) -> list[LoaderConfig]:
    pin = not context.device.is_cpu
    storages = tuple(context.workload.datasets)
    configs = [LoaderConfig(workers, each, pin) for each in storages for workers in WORKERS]
    if pin:  # one without, to see what pinning is worth
        configs.append(LoaderConfig(WORKERS[1], storages[0], pin_memory=False))
    return configs
