"""Who measures? A process that owns the device, takes requests and streams answers.

A new request is one function, and one line in REQUESTS.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from diagnose.measure.batch_size.answers import as_evaluated, describe_inputs
from diagnose.measure.batch_size.probe import (
    measure_loader,
    measure_sweep,
    open_step,
    probe_batch,
    read_available,
    sized,
)
from diagnose.measure.clock import EFFORTS, FULL, QUICK, Progress
from diagnose.measure.jobs import load, source_sha256
from diagnose.measure.machine.allocator import keep_freed_memory
from diagnose.measure.machine.describe import identities, probe
from diagnose.measure.machine.device import DeviceError, open_device
from diagnose.measure.machine.fitting import fit
from diagnose.measure.machine.out_of_memory import (
    ONE_PROCESS,
    is_held_by_another,
    is_out_of_memory,
)
from diagnose.measure.optimize.experiment import (
    Bench,
    measure_ladder_step,
    open_bench,
    run_experiments,
)
from diagnose.measure.optimize.whole_step import (
    map_training_step,
    measure_backbone_share,
    own_training_step,
)
from diagnose.measure.process import Parent
from diagnose.measure.session import Job
from diagnose.measure.stage import run_stage
from diagnose.measure.stages import STAGES, Hints
from diagnose.measure.stages.plan import Context
from diagnose.measure.stages.real_data import usual_precision
from diagnose.measure.words import name_missing_package, one_sentence
from diagnose.records.codec import from_dict, to_dict
from diagnose.records.experiments import Comparison
from diagnose.records.header import Fact, Reading
from diagnose.workload import Treatment, WorkloadError

AS_IT_IS = "as it is"  # the form of a step that has only one


@dataclass(frozen=True)
class Work:
    """What every request has: the open job, whom to tell how far it is, the meter's period."""

    context: Context
    progress: Progress
    energy_period_seconds: float

    @property
    def treatment(self) -> Treatment:
        treatment = self.context.workload.treatment
        assert treatment is not None
        return treatment()

    def open_bench(self) -> Bench:
        return open_bench(self.context, self.energy_period_seconds, self.progress)


def _measure_stage(work: Work, stage: str, hints: dict[str, Any]) -> object:
    work.context.hints = from_dict(Hints, hints, "hints")
    result = run_stage(
        next(each for each in STAGES if each.key == stage),
        work.context,
        energy_period_seconds=work.energy_period_seconds,
        progress=work.progress,
    )
    return to_dict(result)


def _try_experiment(work: Work, key: str) -> object:
    comparisons: list[Comparison] = []
    broken = ""
    # What an optimization raises must not cost the scopes that were measured before it.
    try:
        comparisons.extend(run_experiments(work.treatment.find(key), work.open_bench()))
    except Exception as error:
        traceback.print_exc()
        broken = _sentence(error)
    return {"comparisons": [to_dict(each) for each in comparisons], "broken": broken}


def _climb(work: Work, keys: list[str]) -> object:
    ladder = work.treatment.ladder
    assert ladder is not None
    return to_dict(measure_ladder_step(ladder, keys, work.open_bench()))


def _map_launches(work: Work, form: str) -> object:
    trial = work.treatment.mapped.get(form) or own_training_step(work.context)
    return to_dict(map_training_step(work.context, form, trial))


def _measure_pace(work: Work) -> object:
    best = work.treatment.best
    assert best is not None
    return to_dict(
        measure_backbone_share(work.context, best, work.energy_period_seconds, work.progress)
    )


def _describe_step(work: Work, sharing: int) -> object:
    """What a step is, and what all probes must have in common to be compared.

    Precision is decided once: it is measured, and a probe in another one would not compare.
    """
    available = read_available(work.context, sharing)
    mixed = usual_precision(work.context)
    task = open_step(work.context, mixed=mixed).task
    return {"available": to_dict(available), "task": task, "mixed": mixed}


def _describe_inputs(work: Work, max_crops: int | None) -> object:
    return describe_inputs(sized(work.context, work.context.size.batch_size, max_crops))


def _probe_batch(
    work: Work,
    batch: int,
    max_crops: int | None,
    available: dict[str, Any],
    mixed: bool,
    enough_seconds: float,
    ddp: bool,
) -> object:
    probe, clean = probe_batch(
        sized(work.context, batch, max_crops),
        from_dict(Reading, available, "available"),
        mixed=mixed,
        enough_seconds=enough_seconds,
        ddp=ddp,
    )
    return {"probe": to_dict(probe), "clean": clean}


def _sweep_batches(
    work: Work,
    batches: list[int],
    max_crops: int | None,
    mixed: bool,
    limit_seconds: float,
    ddp: bool,
) -> object:
    jobs = [sized(work.context, batch, max_crops) for batch in batches]
    period = work.energy_period_seconds
    return to_dict(measure_sweep(jobs, limit_seconds, period, work.progress, mixed=mixed, ddp=ddp))


def _time_loader(work: Work, max_crops: int | None, limit_seconds: float) -> object:
    job = sized(work.context, work.context.size.batch_size, max_crops)
    return to_dict(measure_loader(job, limit_seconds, work.progress))


REQUESTS: Mapping[str, Callable[..., object]] = {
    "stage": _measure_stage,
    "experiment": _try_experiment,
    "ladder": _climb,
    "launches": _map_launches,
    "pace": _measure_pace,
    "step": _describe_step,
    "inputs": _describe_inputs,
    "probe": _probe_batch,
    "sweep": _sweep_batches,
    "loader": _time_loader,
}


def main() -> None:
    """Open a job, then answer requests until the parent has no more."""
    keep_freed_memory()
    parent = Parent()
    context: Context | None = None
    for kind, content in parent.requests():
        # The one broad except: whatever a device or a user's code raises must end as one
        # sentence in the report, and the parent replaces this process afterwards.
        try:
            if context is None:
                asked = Job(**content)
                opened = _open(asked)
                answer = _describe(opened, source_sha256(asked.workload))
                context = opened
            else:
                period = content.pop("energy_period_seconds")
                work = Work(context, lambda *seen: parent.tell("progress", seen), period)
                answer = REQUESTS[kind](work, **content)
            parent.tell("done", answer)
        except Exception as error:
            missing = name_missing_package(error)
            if context is None and (missing or isinstance(error, (WorkloadError, DeviceError))):
                parent.tell("refused", missing or str(error))
            else:
                traceback.print_exc()
                parent.tell("failed", _sentence(error))
            return


def _open(asked: Job) -> Context:
    """Load the workload; what cannot be had raises WorkloadError or DeviceError."""
    device = open_device(asked.device)
    model = Path(asked.model) if asked.model else None
    job = load(asked.workload, model)
    job = as_evaluated(job, model, asked.torch_dtype, asked.max_new_tokens, asked.seed)
    size_name, size = job.size(asked.size, device.kind)
    sized_down, free = "", device.free_bytes()
    if asked.copies and asked.size is None and free is not None and job.generation is None:
        size, sized_down = fit(job, size, free // asked.copies)
    if asked.data and not job.datasets:
        raise WorkloadError(f"workload {job.name} has no datasets, so --data has no use")
    usual = QUICK if device.is_cpu else FULL
    return Context(
        device=device,
        workload=job,
        size_name=size_name,
        size=size,
        effort=EFFORTS[asked.effort] if asked.effort else usual,
        seed=asked.seed,
        data=Path(asked.data) if asked.data else None,
        sized_down=sized_down,
    )


def _describe(context: Context, source: str) -> object:
    """What will be measured where, and what can be asked about it."""
    job = context.workload
    allocator = "the C library's own: it could not be told to keep freed memory"
    if keep_freed_memory():
        allocator = "freed memory is kept, as accelerators keep it"
    machine = replace(probe(context.device.kind), allocator=Fact(allocator))
    return {
        "machine": to_dict(machine),
        "identities": [to_dict(each) for each in identities(context.device.kind)],
        "workload": to_dict(context.facts(source)),
        "effort": context.effort.name,
        "is_fake": context.device.is_fake,
        "evaluates": job.generation is not None,
        "treatment": _describe_treatment(job.treatment() if job.treatment else None),
    }


def _describe_treatment(treatment: Treatment | None) -> object:
    """What `optimize` can ask about."""
    if treatment is None:
        return None
    ladder = treatment.ladder
    patches = {key: dict(patch) for key, patch in ladder.patches.items()} if ladder else {}
    return {
        "experiments": [each.key for each in treatment.optimizations],
        "parts": [each.key for each in treatment.parts],
        "mapped": list(treatment.mapped or (AS_IT_IS,)),
        "has_best": treatment.best is not None,
        "ladder": {"scope": ladder.scope, "patches": patches} if ladder else None,
    }


def _sentence(error: Exception) -> str:
    """What happened, in one line, with the place in the user's code where there is one."""
    if missing := name_missing_package(error):
        return missing
    text = one_sentence(str(error))
    if is_out_of_memory(error, torch.OutOfMemoryError):
        return f"out of memory: {text}; choose a smaller --size or batch"
    if is_held_by_another(text):
        return f"{text}: {ONE_PROCESS}"
    return f"{type(error).__name__}: {text}{_user_place(error)}"


def _user_place(error: Exception) -> str:
    """The innermost frame that is neither a library's nor this suite's measuring half."""
    own = str(Path(__file__).resolve().parent)
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        name = frame.filename
        if "site-packages" not in name and not name.startswith(
            (own, "<", sys.prefix, sys.base_prefix)
        ):
            return f" ({Path(name).name}:{frame.lineno})"
    return ""


if __name__ == "__main__":
    main()
