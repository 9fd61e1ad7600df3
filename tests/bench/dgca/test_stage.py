"""Does the stage "full model" train exactly what the training script trains?"""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch.utils.data import default_collate

from bench.dgca.config import DGCAConfig
from bench.dgca.masking import mask_through_tokenizer, prepare_batch
from bench.dgca.model import DGCA, ORIGINAL
from bench.dgca.state import start_training
from bench.dgca.trainer import Objective, Schedule, train
from bench.dgca.workload import SIZES, WORKLOAD
from diagnose.measure.clock import SMOKE
from diagnose.measure.machine.device import open_device
from diagnose.measure.stages.plan import Context
from diagnose.measure.stages.steps import TrainingStep

STEPS = 3
SEED = 5
SIZE = SIZES["tiny"]


def batches() -> list[dict[str, torch.Tensor]]:
    dataset = WORKLOAD.datasets["preload"](SIZE, None)
    rows = SIZE.batch_size
    return [
        default_collate([dataset[row] for row in range(first, first + rows)])
        for first in range(0, STEPS * rows, rows)
    ]


def as_the_stage_does() -> list[torch.Tensor]:
    context = Context(open_device("cpu"), WORKLOAD, "tiny", SIZE, SMOKE, SEED)
    given = iter(batches())
    step = TrainingStep(context, WORKLOAD.model, lambda: next(given))
    step.prepare()
    torch.manual_seed(SEED)
    for _ in range(STEPS):
        step()
    return list(context.model(WORKLOAD.model).parameters())


class ConstantRate(Schedule):
    """What a step costs does not depend on the rate, so the stage keeps the first one."""

    def at(self, step: int) -> float:
        return self.learning_rate


def as_the_script_does() -> list[torch.Tensor]:
    torch.manual_seed(SEED)
    model = DGCA(DGCAConfig.from_size(SIZE), ORIGINAL)
    state = start_training(model, WORKLOAD.learning_rate, False, False, torch.device("cpu"))
    model.train()
    torch.manual_seed(SEED)
    steps = train(
        state,
        Objective(model, model.config),
        batches(),
        ConstantRate(WORKLOAD.learning_rate, STEPS),
        accumulation=1,
        half=False,
        prepare=partial(prepare_batch, mask_form=mask_through_tokenizer),
    )
    assert len(list(steps)) == STEPS
    return list(model.parameters())


@pytest.mark.long
def test_the_stage_trains_what_the_script_trains() -> None:
    torch.manual_seed(SEED)
    untrained = list(DGCA(DGCAConfig.from_size(SIZE), ORIGINAL).parameters())
    stage, script = as_the_stage_does(), as_the_script_does()
    assert len(stage) == len(script) == len(untrained)
    assert all(torch.equal(a, b) for a, b in zip(stage, script, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(stage, untrained, strict=True))
