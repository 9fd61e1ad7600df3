"""Which stages are there? Each adds one part of the job to the one before.

No torch here: the command line lists the stages without loading it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from diagnose.records.header import Setting


@dataclass(frozen=True)
class Stage:
    """One step of the diagnosis. Its module offers `plan(context)`."""

    key: str
    title: str

    @property
    def module(self) -> str:
        return f"{__name__}.{self.key}"


@dataclass(frozen=True)
class Hints:
    """What earlier stages found that later ones build on."""

    training_seconds: float | None = None  # of one step
    loader: Mapping[str, Setting] | None = None  # settings of the fastest configuration


# The order is the diagnosis: first what the device can do at all, then the job, one part at
# a time, so that the first stage that disappoints names the part to blame.
STAGES = (
    Stage("ceilings", "Ceilings of this device"),
    Stage("inference", "Pure inference"),
    Stage("training", "Training"),
    Stage("precision", "Mixed precision"),
    Stage("loader", "DataLoader alone"),
    Stage("real_data", "Real data + training"),
    Stage("full_model", "Full model, real data"),
)
STAGE_KEYS = tuple(stage.key for stage in STAGES)
# The last stage needs several processes and is recorded by rank, so it has a record of its own.
INTERCONNECT = "interconnect"
