"""What do the options ask for here? A model, an order of the rows, and a recipe to hold on to."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from bench.dgca.arguments import Options
from bench.dgca.checkpoint import Recipe
from bench.dgca.config import DGCAConfig
from bench.dgca.model import DGCA, OPTIMISED, ORIGINAL
from bench.dgca.ranks import Ranks
from bench.dgca.rows import DataFile, Order
from bench.dgca.state import TrainingState
from bench.dgca.trainer import Objective
from diagnose.workload import WorkloadError


@dataclass(frozen=True)
class Job:
    """The options, and what they mean on this machine among these processes."""

    options: Options
    config: DGCAConfig
    batch_size: int
    device: torch.device
    ranks: Ranks

    @property
    def micro_batch(self) -> int:
        return self.batch_size // self.options.gradient_accumulation_steps


def build_model(job: Job) -> DGCA:
    forms = OPTIMISED if job.options.form == "optimised" else ORIGINAL
    if not job.options.apply_prompt:
        forms = replace(forms, apply_prompt=leave_embeddings)
    model = DGCA(job.config, forms).to(job.device)
    # DDP waits for a gradient of every parameter that asks for one.
    model.prompt.requires_grad_(job.options.apply_prompt)
    if job.device.type == "cpu":
        # oneDNN has no bfloat16 LSTM for many processors, and the prompts are six vectors.
        in_full = torch.autocast("cpu", enabled=False)
        model.prompt.forward = in_full(model.prompt.forward)  # type: ignore[method-assign]
    return model


def leave_embeddings(embeds: Tensor, block_flag: Tensor, prompts: Tensor) -> Tensor:
    """Without --apply-prompt the slots keep the embeddings of [CLS] and [SEP]."""
    return embeds


def wrap(job: Job, state: TrainingState) -> nn.Module:
    assert isinstance(state.model, DGCA)
    objective = Objective(state.model, job.config)
    if job.ranks.world == 1:
        return objective
    return DistributedDataParallel(
        objective,
        device_ids=[job.device.index] if job.device.type == "cuda" else None,
        bucket_cap_mb=job.options.ddp_bucket_cap_mb,
        broadcast_buffers=False,  # they are constants
        gradient_as_bucket_view=True,
        static_graph=job.options.ddp_static_graph,
    )


def plan_order(job: Job, data: DataFile) -> Order:
    options = job.options
    if job.micro_batch == 0:
        raise WorkloadError(
            f"--train-batch-size {job.batch_size} cannot be divided into "
            f"{options.gradient_accumulation_steps} micro-batches; accumulate fewer"
        )
    order = Order(
        rows=len(data),
        micro_batch=job.micro_batch,
        accumulation=options.gradient_accumulation_steps,
        seed=options.seed,
        rank=job.ranks.rank,
        world=job.ranks.world,
    )
    if order.steps_per_epoch == 0:
        raise WorkloadError(
            f"data file {data.name} has {len(data)} rows, fewer than one step of "
            f"{job.ranks.world} × {job.batch_size}; use a smaller --train-batch-size"
        )
    return replace(order, end_step=options.max_steps or options.epochs * order.steps_per_epoch)


def describe_recipe(job: Job, order: Order | None, data: DataFile | None) -> Recipe:
    """What must be the same for a resumed run to end where an uninterrupted one ends."""
    options = job.options
    recipe = {"config": asdict(job.config), "apply_prompt": options.apply_prompt}
    if order is None or data is None:
        return recipe
    return recipe | {
        "form": options.form,
        "mft": options.mft,
        "fp16": options.fp16,
        "seed": options.seed,
        "learning_rate": options.learning_rate,
        "steps": order.end_step,
        "micro_batch": order.micro_batch,
        "gradient_accumulation_steps": order.accumulation,
        "processes": job.ranks.world,
        "device": job.device.type,
        "training_data": data.fingerprint,
    }
