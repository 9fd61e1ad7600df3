"""Who measures? The child process: it owns the device, takes requests and streams answers.

Requests are JSON lines on standard input, answers are JSON lines on a pipe of their own, so
that whatever a workload prints cannot be mistaken for a result.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any, TextIO

from diagnose.codec import from_dict, to_dict
from diagnose.measure.words import one_sentence
from diagnose.model import DataFacts, WorkloadFacts

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Answer requests until standard input ends."""
    _die_with_parent()
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
            elif "launches" in request:
                _map_launches(answers, context, request["launches"])
            else:
                _measure(answers, context, **request)
        except Exception as error:
            traceback.print_exc()
            _answer(answers, "failed", _sentence(error))
            return


def _die_with_parent() -> None:
    """A killed parent must not leave a child on the device."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


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
    effort: str,
    seed: int,
) -> object:
    """Load the workload and say what will be measured where, or refuse with a sentence."""
    from bench.workload import WorkloadError, load, source_sha256
    from diagnose.measure.clock import EFFORTS, FULL, QUICK
    from diagnose.measure.device import DeviceError, open_device
    from diagnose.measure.machine import identities, probe
    from diagnose.measure.stages.plan import Context

    try:
        opened = open_device(device)
        job = load(workload)
        size_name, chosen = job.size(size, opened.kind)
        path = Path(data) if data else None
        if path and not job.datasets:
            raise WorkloadError(f"workload {job.name} has no datasets, so --data has no use")
        facts = job.describe_data(chosen, path) if job.describe_data else None
    except (WorkloadError, DeviceError) as error:
        _answer(answers, "refused", str(error))
        return None
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
    machine = probe(opened.kind)
    record = WorkloadFacts(
        name=job.name,
        size=size_name,
        settings={
            "batch_size": chosen.batch_size,
            "sequence_length": chosen.sequence_length,
            **chosen.shape,
        },
        parameters=context.count_parameters(),
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
        },
    )
    return context


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
    from bench.optimizations.catalogue import OPTIMIZATIONS
    from bench.optimizations.contract import find
    from diagnose.measure.experiment import open_bench, run_experiments

    bench = open_bench(
        context, energy_period_seconds, lambda *seen: _answer(answers, "progress", seen)
    )
    comparisons = [
        to_dict(each) for each in run_experiments(find(OPTIMIZATIONS, experiment), bench)
    ]
    _answer(answers, "experiment", {"comparisons": comparisons})


def _map_launches(answers: TextIO, context: Any, form: str) -> None:
    from diagnose.measure.experiment import map_training_step

    _answer(answers, "launches", to_dict(map_training_step(context, form)))


def _sentence(error: Exception) -> str:
    """What happened, in one line, with the place in the user's code where there is one."""
    import torch

    text = one_sentence(str(error))
    if _is_out_of_memory(error, torch.OutOfMemoryError):
        return f"out of memory: {text}; choose a smaller --size or batch"
    place = _user_place(error)
    return f"{type(error).__name__}: {text}{place}"


def _is_out_of_memory(error: Exception, out_of_memory: type[Exception]) -> bool:
    """It is not one exception: CPU, MIG slices and cuBLAS each say it in their own words."""
    if isinstance(error, (out_of_memory, MemoryError)):
        return True
    text = str(error)
    return isinstance(error, (RuntimeError, OSError)) and any(
        words in text
        for words in (
            "can't allocate memory",
            "Cannot allocate memory",
            "CUDA error: out of memory",
            "CUBLAS_STATUS_ALLOC_FAILED",
            "CUDNN_STATUS_ALLOC_FAILED",
            "NVML_SUCCESS == r INTERNAL ASSERT FAILED",
        )
    )


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
