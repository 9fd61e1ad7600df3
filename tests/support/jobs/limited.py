"""The tiny language model in a process that may take only ROOM_BYTES more than it has."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from bench.textgen.workload import WORKLOAD as TEXTGEN
from diagnose.workload import Size
from tests.support.jobs.sized import ROOM_BYTES
from tests.support.jobs.small import limit_memory


def build(size: Size) -> nn.Module:
    model = TEXTGEN.model.build(size)
    limit_memory(ROOM_BYTES)
    return model


WORKLOAD = replace(
    TEXTGEN,
    name="limited",
    sizes={"tiny": TEXTGEN.sizes["tiny"]},
    model=replace(TEXTGEN.model, build=build),
)
