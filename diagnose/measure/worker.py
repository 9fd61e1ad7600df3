"""Who measures? The child process: it owns the device, takes requests and streams answers.

Requests are JSON lines on standard input, answers are JSON lines on a pipe of their own, so
that whatever a workload prints cannot be mistaken for a result.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

from diagnose.measure.machine.allocator import keep_freed_memory
from diagnose.measure.machine.out_of_memory import is_out_of_memory
from diagnose.measure.process import die_with_parent
from diagnose.measure.words import one_sentence
from diagnose.records.codec import from_dict, to_dict
from diagnose.records.experiments import Comparison
from diagnose.records.header import DataFacts, Fact, WorkloadFacts

AS_IT_IS = "as it is"  # the form of a step that has only one


def main() -> None:
    """Answer requests until standard input ends."""
    die_with_parent()
    keep_freed_memory()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    answers = os.fdopen(int(sys.argv[1]), "w", buffering=1)
    context: Any = None
    for line in sys.stdin:
        request = json.loads(line)
        # The one broad except: whatever a device or a user's code raises must end as one
        # sentence in the report, and the parent replaces this process afterwards.
        try:
            if "open" in request:
                context = _open(answers, **request["open"])
            elif "experiment" in request:
                _experiment(answers, context, **request)
            elif "rung" in request:
                _climb(answers, context, **request)
            elif "launches" in request:
                _map_launches(answers, context, request["launches"])
            elif "pace" in request:
                _measure_pace(answers, context, request["pace"])
            elif "batch_size" in request:
                _try_batch_size(answers, context, **request["batch_size"])
            else:
                _measure(answers, context, **request)
        except Exception as error:
            traceback.print_exc()
            _answer(answers, "failed", _sentence(error))
            return


def _answer(answers: TextIO, kind: str, content: object) -> None:
    answers.write(json.dumps({kind: content}, allow_nan=False) + "\n")
    answers.flush()


def _open(
    answers: TextIO,
    *,
    workload: str,
    size: str | None,
    device: str | None,
    data: str | None,
    model: str | None,
    torch_dtype: str | None,
    max_new_tokens: int | None,
    effort: str,
    seed: int,
) -> object:
    """Load the workload and say what will be measured where, or refuse with a sentence."""
    from diagnose.measure.batch_size.answers import as_evaluated
    from diagnose.measure.clock import EFFORTS, FULL, QUICK
    from diagnose.measure.jobs import load, source_sha256
    from diagnose.measure.machine.describe import identities, probe
    from diagnose.measure.machine.device import DeviceError, open_device
    from diagnose.measure.stages.plan import Context
    from diagnose.workload import WorkloadError

    try:
        opened = open_device(device)
        directory = Path(model) if model else None
        job = load(workload, directory)
        job = as_evaluated(job, directory, torch_dtype, max_new_tokens, seed)
        size_name, chosen = job.size(size, opened.kind)
        path = Path(data) if data else None
        if path and not job.datasets:
            raise WorkloadError(f"workload {job.name} has no datasets, so --data has no use")
        facts = job.describe_data(chosen, path) if job.describe_data else None
        default_effort = QUICK if opened.is_cpu else FULL
        context = Context(
            device=opened,
            workload=job,
            size_name=size_name,
            size=chosen,
            effort=EFFORTS.get(effort, default_effort),
            seed=seed,
            data=path,
        )
        parameters = context.count_parameters()
    except (WorkloadError, DeviceError) as error:
        _answer(answers, "refused", str(error))
        return None
    machine = replace(probe(opened.kind), allocator=_describe_allocator())
    treatment = job.treatment() if job.treatment else None
    record = WorkloadFacts(
        name=job.name,
        size=size_name,
        settings={
            "batch_size": chosen.batch_size,
            "sequence_length": chosen.sequence_length,
            **chosen.shape,
        },
        parameters=parameters,
        source_sha256=source_sha256(workload),
        data=DataFacts(**vars(facts)) if facts else None,
        data_reason="" if facts else f"workload {job.name} does not describe its data",
    )
    _answer(
        answers,
        "ready",
        {
            "machine": to_dict(machine),
            "identities": [to_dict(identity) for identity in identities(opened.kind)],
            "workload": to_dict(record),
            "effort": context.effort.name,
            "is_fake": opened.is_fake,
            "experiments": [each.key for each in treatment.optimizations] if treatment else [],
            "mapped": list(treatment.mapped or (AS_IT_IS,)) if treatment else [],
            "has_best": bool(treatment and treatment.best),
            "evaluates": job.generation is not None,
            "ladder": _describe_ladder(treatment.ladder) if treatment else None,
        },
    )
    return context


def _describe_ladder(ladder: Any) -> dict[str, Any] | None:
    if ladder is None:
        return None
    patches = {key: dict(patch) for key, patch in ladder.patches.items()}
    return {"scope": ladder.scope, "patches": patches}


def _describe_allocator() -> Fact:
    if keep_freed_memory():
        return Fact("freed memory is kept, as accelerators keep it")
    return Fact("the C library's own: it could not be told to keep freed memory")


def _measure(
    answers: TextIO,
    context: Any,
    *,
    stage: str,
    hints: dict[str, Any],
    energy_period_seconds: float,
) -> None:
    from diagnose.measure.stage import run_stage
    from diagnose.measure.stages import STAGES, Hints

    context.hints = from_dict(Hints, hints, "hints")
    result = run_stage(
        next(each for each in STAGES if each.key == stage),
        context,
        energy_period_seconds=energy_period_seconds,
        progress=lambda *seen: _answer(answers, "progress", seen),
    )
    _answer(answers, "stage", to_dict(result))


def _experiment(
    answers: TextIO, context: Any, *, experiment: str, energy_period_seconds: float
) -> None:
    from diagnose.measure.optimize.experiment import open_bench, run_experiments

    bench = open_bench(
        context, energy_period_seconds, lambda *seen: _answer(answers, "progress", seen)
    )
    optimization = context.workload.treatment().find(experiment)
    comparisons: list[Comparison] = []
    broken = ""
    # What an optimisation raises must not cost the scopes that were measured before it.
    try:
        comparisons.extend(run_experiments(optimization, bench))
    except Exception as error:
        traceback.print_exc()
        broken = _sentence(error)
    done = [to_dict(each) for each in comparisons]
    _answer(answers, "experiment", {"comparisons": done, "broken": broken})


def _climb(answers: TextIO, context: Any, *, rung: list[str], energy_period_seconds: float) -> None:
    from diagnose.measure.optimize.experiment import open_bench
    from diagnose.measure.optimize.rung import measure_rung

    bench = open_bench(
        context, energy_period_seconds, lambda *seen: _answer(answers, "progress", seen)
    )
    made = measure_rung(context.workload.treatment().ladder, rung, bench)
    _answer(answers, "rung", to_dict(made))


def _map_launches(answers: TextIO, context: Any, form: str) -> None:
    from diagnose.measure.optimize.experiment import map_training_step, own_training_step

    trial = context.workload.treatment().mapped.get(form) or own_training_step(context)
    _answer(answers, "launches", to_dict(map_training_step(context, form, trial)))


def _measure_pace(answers: TextIO, context: Any, energy_period_seconds: float) -> None:
    from diagnose.measure.optimize.pace import measure_pace

    result = measure_pace(
        context,
        context.workload.treatment().best,
        energy_period_seconds,
        lambda *seen: _answer(answers, "progress", seen),
    )
    _answer(answers, "pace", to_dict(result))


def _try_batch_size(answers: TextIO, context: Any, *, ask: str, **request: Any) -> None:
    from diagnose.measure.batch_size.requests import ANSWERS

    content = ANSWERS[ask](context, request, lambda *seen: _answer(answers, "progress", seen))
    _answer(answers, "batch_size", content)


def _sentence(error: Exception) -> str:
    """What happened, in one line, with the place in the user's code where there is one."""
    import torch

    text = one_sentence(str(error))
    if is_out_of_memory(error, torch.OutOfMemoryError):
        return f"out of memory: {text}; choose a smaller --size or batch"
    place = _user_place(error)
    return f"{type(error).__name__}: {text}{place}"


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
