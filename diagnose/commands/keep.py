"""What do the measuring verbs share? How they read the job, keep what they measure and write it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from diagnose.commands.progress import Console
from diagnose.measure.session import Job
from diagnose.records.batch_size import BatchSizeRecord
from diagnose.records.codec import dumps
from diagnose.records.experiments import OptimizeRecord
from diagnose.records.header import WorkloadFacts
from diagnose.records.run import RunRecord
from diagnose.render import store

R = TypeVar("R", RunRecord, OptimizeRecord, BatchSizeRecord)
Save = Callable[[R], None]


def read_job(arguments: argparse.Namespace) -> Job:
    return Job(
        workload=arguments.workload,
        size=arguments.size,
        device=arguments.device,
        data=arguments.data,
        model=arguments.model,
        effort=arguments.effort,
        seed=arguments.seed,
    )


def label_parts(workload: WorkloadFacts, arguments: argparse.Namespace) -> list[str]:
    """What of the options makes this another job than the workload as it comes."""
    parts = [workload.size] if arguments.size is not None else []
    parts += [Path(arguments.model).resolve().name] if arguments.model is not None else []
    parts += [Path(arguments.data).stem] if arguments.data is not None else []
    return parts


def measure_and_keep(
    measure: Callable[[R, Save[R]], R],
    record: R,
    directory: Path,
    console: Console,
    on_interrupt: Callable[[R], None],
) -> R:
    """Measure, with every state on disk as soon as it is known, and write the report."""
    newest = record

    def save(seen: R) -> None:
        nonlocal newest
        newest = seen
        store.save(seen, directory)

    try:
        record = measure(record, save)
    except KeyboardInterrupt:
        console.stop()
        on_interrupt(newest)
        raise
    except store.StoreError:
        # The disk is the reader's to repair; what was measured must not be lost with it.
        print(dumps(newest).decode(), file=sys.stderr)
        raise
    write(directory)
    return record


def write(directory: Path) -> None:
    """The report and the index of all reports."""
    from diagnose.render.check import write_index, write_report

    write_report(directory)
    write_index(directory.parent)
