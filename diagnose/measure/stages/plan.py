"""What does a stage run? The variants it times, and the context that they are built from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from diagnose.measure.clock import Effort, Timed
from diagnose.measure.machine.device import Device
from diagnose.measure.stages import Hints
from diagnose.records.header import DataFacts, Reading, Setting, WorkloadFacts
from diagnose.workload import Network, Size, Workload


class SkipStage(Exception):
    """This stage does not apply here; the message says why."""


class InvalidStage(Exception):
    """What was measured is worthless; the message says why."""


NO_ARITHMETIC = Reading(None, "this step does no arithmetic on the device")
NOT_COUNTED = Reading(None, "not counted for this step")


@dataclass(frozen=True, kw_only=True)
class Variant(Timed):
    """One thing to time, with what is known about a step of it."""

    settings: Mapping[str, Setting]
    role: Literal["result", "reference"] = "result"
    samples_per_step: int | None = None
    # None: count the FLOPs of one step by watching its operators.
    flops_per_step: Reading | None = None
    bytes_per_step: Reading = NOT_COUNTED


@dataclass(frozen=True)
class Plan:
    """The variants of one stage, timed together in interleaved blocks."""

    variants: Sequence[Variant]
    notes: Sequence[str] = ()


@dataclass
class Context:
    """Everything a stage may need. The networks are built once and shared by the stages."""

    device: Device
    workload: Workload
    size_name: str
    size: Size
    effort: Effort
    seed: int
    data: Path | None = None
    sized_down: str = ""  # the batch, and why it is smaller than that of its size
    hints: Hints = field(default_factory=Hints)
    _models: dict[int, torch.nn.Module] = field(default_factory=dict)
    _optimizers: dict[int, torch.optim.Optimizer] = field(default_factory=dict)
    _datasets: dict[str, Any] = field(default_factory=dict)

    @property
    def backbone(self) -> Network:
        return self.workload.backbone or self.workload.model

    def model(self, network: Network) -> torch.nn.Module:
        if id(network) not in self._models:
            torch.manual_seed(self.seed)
            self._models[id(network)] = network.build(self.size).to(self.device.torch)
        return self._models[id(network)]

    def optimizer(self, network: Network) -> torch.optim.Optimizer:
        if id(network) not in self._optimizers:
            parameters = [p for p in self.model(network).parameters() if p.requires_grad]
            if not parameters:
                raise SkipStage("the model has no parameters to train")
            self._optimizers[id(network)] = torch.optim.AdamW(
                parameters, lr=self.workload.learning_rate
            )
        return self._optimizers[id(network)]

    def count_parameters(self) -> int:
        """Of the full model, which is not kept for that if the early stages do not use it."""
        full = self.workload.model
        kept = full is self.backbone or id(full) in self._models
        model = self.model(full) if kept else full.build(self.size)
        return sum(parameter.numel() for parameter in model.parameters())

    def facts(self, source_sha256: str) -> WorkloadFacts:
        """What is measured, as every record says it."""
        job, size = self.workload, self.size
        data = job.describe_data(size, self.data) if job.describe_data else None
        return WorkloadFacts(
            name=job.name,
            size=self.size_name,
            settings={
                "batch_size": size.batch_size,
                "sequence_length": size.sequence_length,
                **size.shape,
                **({"sized_down": self.sized_down} if self.sized_down else {}),
            },
            parameters=self.count_parameters(),
            source_sha256=source_sha256,
            data=DataFacts(**vars(data)) if data else None,
            data_reason="" if data else f"workload {job.name} does not describe its data",
        )

    def dataset(self, storage: str) -> Any:
        if storage not in self._datasets:
            self._datasets[storage] = self.workload.datasets[storage](self.size, self.data)
        return self._datasets[storage]

    def settings(self, dtype: str, **more: Setting) -> dict[str, Setting]:
        return {
            "batch_size": self.size.batch_size,
            "sequence_length": self.size.sequence_length,
            "dtype": dtype,
            **more,
        }
