"""What does the rest of the model cost, around the backbone that the stages before measured?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from diagnose.measure.stages.batches import feeding_config, open_batches
from diagnose.measure.stages.plan import Context, Plan, SkipStage
from diagnose.measure.stages.real_data import fed_variant, usual_precision


@contextmanager
def plan(context: Context) -> Iterator[Plan]:
    if context.workload.backbone is None:
        raise SkipStage(
            f"workload {context.workload.name} has no separate backbone: "
            "the stages before have measured its full model"
        )
    config = feeding_config(context)
    mixed = usual_precision(context)
    with open_batches(context, config) as source:
        full = fed_variant(
            context, context.workload.model, source, config, name="full model", mixed=mixed
        )
        backbone = fed_variant(
            context, context.workload.backbone, source, config, name="backbone", mixed=mixed
        )
        yield Plan([full, replace(backbone, role="reference")])
