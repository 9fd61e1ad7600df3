"""What happens in one run? Resume, train with pauses to save and evaluate, then test."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from bench.dgca import checkpoint
from bench.dgca.arguments import LATEST, Options
from bench.dgca.config import DGCAConfig
from bench.dgca.evaluate import Metrics, evaluate
from bench.dgca.masking import mask_on_device, mask_through_tokenizer
from bench.dgca.model import DGCA, OPTIMISED, ORIGINAL
from bench.dgca.progress import Journal
from bench.dgca.ranks import Ranks, choose_device, join_ranks
from bench.dgca.rows import DataFile, Order, load_batches, open_data
from bench.dgca.state import TrainingState, read_random_states, seed_rank, start_training
from bench.dgca.trainer import (
    Objective,
    Schedule,
    Unread,
    move_and_mask,
    note,
    require_progress,
    train,
)
from bench.dgca.workload import WORKLOAD
from bench.train_command import TrainingFailed
from diagnose.workload import WorkloadError

_SIGNALS = (signal.SIGINT, signal.SIGTERM)  # torchrun sends the second one to its processes


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


def describe_recipe(job: Job, order: Order | None, data: DataFile | None) -> checkpoint.Recipe:
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


def run(options: Options) -> bool:
    """Train, evaluate and test as asked; False if an interrupt ended it before."""
    device = choose_device(options.device)
    _, size = WORKLOAD.size(options.size, device.type)
    config = DGCAConfig.from_size(size)
    with ExitStack() as stack:
        # Before the processes join: a signal must find someone who can save.
        interrupt = stack.enter_context(Interrupt())
        ranks = stack.enter_context(join_ranks(device))
        job = Job(options, config, options.train_batch_size or size.batch_size, device, ranks)
        return _run(job, interrupt)


def _run(job: Job, interrupt: Interrupt) -> bool:
    options = job.options
    files = {
        name: open_data(path, job.config, options.preload_data)
        for name in ("train", "eval", "test")
        if getattr(options, f"do_{name}") and (path := getattr(options, f"preprocessed_{name}"))
    }
    torch.manual_seed(options.seed)  # the same model in every process
    state = start_training(
        build_model(job),
        options.learning_rate,
        options.fp16,
        options.form == "optimised",
        job.device,
    )
    seed_rank(state, options.seed, job.ranks.rank)
    order = plan_order(job, files["train"]) if options.do_train else None
    recipe = describe_recipe(job, order, files.get("train"))
    _resume(job, state, recipe, train_too=order is not None)
    end = order.end_step if order else state.step
    if job.ranks.leads:
        options.output.mkdir(parents=True, exist_ok=True)
    with Journal(options.output, state.step, end, job.ranks.leads) as journal:
        if order is not None and not _train(job, state, recipe, order, files, journal, interrupt):
            return False
        for name in ("eval", "test"):
            if name in files:
                journal.tell_metrics(name, state.step, _evaluate(job, state, files[name]))
    return True


def _train(
    job: Job,
    state: TrainingState,
    recipe: checkpoint.Recipe,
    order: Order,
    files: Mapping[str, DataFile],
    journal: Journal,
    interrupt: Interrupt,
) -> bool:
    """To the last step or to an interrupt; either way the end is in a checkpoint."""
    options, start = job.options, state.step
    unread = Unread()
    saved = start
    stopped = False
    loader = load_batches(files["train"].tensors, replace(order, first_step=start), options)
    mask_form = mask_on_device if options.form == "optimised" else mask_through_tokenizer
    steps = train(
        state,
        wrap(job, state),
        loader,
        Schedule(options.learning_rate, order.end_step),
        options.gradient_accumulation_steps,
        options.fp16,
        partial(move_and_mask, state=state, mask_form=mask_form if options.mft else None),
    )
    journal.forget_after(start)
    journal.say(
        f"{count_parameters(state.model) / 1e6:.2f} million parameters on {job.device}, "
        f"{order.rows_per_step} rows per step "
        f"(processes {job.ranks.world}, micro-batches {order.accumulation} of {order.micro_batch})"
    )
    state.model.train()
    for loss, norm in steps:
        unread.losses.append(loss)
        unread.norms.append(norm)
        stopped = job.ranks.any(interrupt.asked)
        last = stopped or state.step == order.end_step
        saves = last or state.step % options.save_steps == 0
        if saves or state.step % options.log_steps == 0:
            _read(job, state, unread, journal)
        if saves:
            _save(job, state, recipe)
            saved = state.step
        if stopped:
            break
        if "eval" in files and state.step % options.eval_steps == 0 and not last:
            journal.tell_metrics("eval", state.step, _evaluate(job, state, files["eval"]))
        if saves or state.step % options.eval_steps == 0:
            journal.restart_clock()
    require_progress(state)
    journal.say(
        f"{state.step - start} steps of {order.rows_per_step} rows, "
        f"{state.skipped_steps} skipped, {state.nonfinite_losses} losses not finite; "
        f"checkpoint {options.output / f'step-{saved}'}"
    )
    return not stopped


def _resume(job: Job, state: TrainingState, recipe: checkpoint.Recipe, train_too: bool) -> None:
    options = job.options
    if options.resume is None:
        if (options.output / checkpoint.LATEST).exists():
            raise WorkloadError(
                f"{options.output} already holds checkpoints; go on with --resume "
                "or choose another --output"
            )
        return
    folder = checkpoint.find(options.output if options.resume == LATEST else Path(options.resume))
    content = checkpoint.read_state(folder)
    checkpoint.require_recipe(folder, content["recipe"], recipe)
    checkpoint.load_model(folder, state.model)
    if train_too:
        checkpoint.load_training(folder, content, state, job.ranks.rank)
    else:
        state.step = content["step"]


def count_parameters(model: nn.Module) -> int:
    return sum(each.numel() for each in model.parameters())


def _read(job: Job, state: TrainingState, unread: Unread, journal: Journal) -> None:
    losses, norms = unread.read()
    shares = job.ranks.gather(losses)
    means = [sum(each) / len(each) for each in zip(*shares, strict=True)]
    note(state, means, norms)
    journal.tell_losses(state.step, means)


def _save(job: Job, state: TrainingState, recipe: checkpoint.Recipe) -> None:
    states = job.ranks.gather(read_random_states(state))
    require_agreement(job.ranks, state.model)
    if job.ranks.leads:
        try:
            checkpoint.save(job.options.output, state, recipe, states)
        except OSError as error:
            raise TrainingFailed(
                f"the checkpoint of step {state.step} cannot be written: {error.strerror}; "
                "earlier ones are intact, make room and --resume"
            ) from error


def require_agreement(ranks: Ranks, model: nn.Module) -> None:
    """Processes that drift apart would go on quietly, each with a model of its own."""
    if ranks.world > 1 and len(set(ranks.gather(checkpoint.digest_model(model)))) > 1:
        raise TrainingFailed("the processes hold different parameters; gradients got lost")


def _evaluate(job: Job, state: TrainingState, data: DataFile) -> Metrics:
    return evaluate(state.model, data, job.micro_batch, job.options, job.device, job.ranks)


class Interrupt:
    """Inside the block a signal only raises a flag; training looks at it after each step.

    The first Ctrl-C asks, the second insists.
    """

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interrupt:
        self._before = {each: signal.signal(each, self._handle) for each in _SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
