"""How fast do batches arrive when nothing else has to be done?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from diagnose.measure.stages.batches import (
    BatchSource,
    LoaderConfig,
    open_batches,
    require_dataset,
    shared_memory_shortage,
)
from diagnose.measure.stages.plan import NO_ARITHMETIC, Context, Plan, SkipStage, Variant

# 0 is loading in the training process itself; 2, 4 and 8 are what people try.
WORKERS = (0, 2, 4, 8)


@contextmanager
def plan(context: Context) -> Iterator[Plan]:
    pin = not context.device.is_cpu
    notes = [] if pin else ["pin_memory: not applicable, there is no copy to a device"]
    configs = [
        LoaderConfig(workers, storage, pin)
        for storage in require_dataset(context)
        for workers in WORKERS
    ]
    with ExitStack() as opened:
        variants = []
        for config in configs:
            shortage = shared_memory_shortage(context, config)
            if shortage:
                notes.append(shortage)
            else:
                source = opened.enter_context(open_batches(context, config))
                variants.append(_variant(context, config, source))
        if not variants:
            raise SkipStage(notes[-1])
        yield Plan(variants, notes)


def _variant(context: Context, config: LoaderConfig, source: BatchSource) -> Variant:
    return Variant(
        name=config.name,
        step=source.next,
        settings=context.settings("as stored", **config.settings),
        samples_per_step=context.size.batch_size,
        flops_per_step=NO_ARITHMETIC,
        before_slot=source.drain,
    )
