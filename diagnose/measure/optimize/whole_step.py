"""What does a whole training step do? Where it launches its work, and what is left to gain."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from diagnose.measure.clock import Progress
from diagnose.measure.jobs import ROOT
from diagnose.measure.lines.launches import map_launches
from diagnose.measure.optimize.experiment import lab_of
from diagnose.measure.stage import measure_plan
from diagnose.measure.stages.plan import Context, Plan, Variant
from diagnose.measure.stages.steps import TrainingStep
from diagnose.measure.stages.training import training_variant
from diagnose.records.experiments import LaunchMap
from diagnose.records.run import StageResult
from diagnose.workload import Lab, OpenTrial, Trial


def map_training_step(context: Context, form: str, open_trial: OpenTrial) -> LaunchMap:
    """The launch map of a whole training step in one of its forms."""
    with open_trial(lab_of(context)) as trial:
        return map_launches(
            trial.step,
            context.device,
            roots=source_roots(context),
            form=form,
            settings={
                "batch_size": context.size.batch_size,
                "sequence_length": context.size.sequence_length,
            },
        )


def own_training_step(context: Context) -> OpenTrial:
    """The training step of a workload that names no forms of its own."""

    @contextmanager
    def trial(lab: Lab) -> Iterator[Trial]:
        network = context.workload.model
        batch = context.workload.synthetic_batch(lab.size, lab.device)
        step = TrainingStep(context, network, lambda: batch)
        step.prepare()
        yield Trial(step, lab.size.batch_size)

    return trial


def source_roots(context: Context) -> list[Path]:
    """Where the job's own code lies: its lines are named, those of libraries are not."""
    suite = ROOT / "bench"
    file = Path(inspect.getfile(inspect.unwrap(context.workload.model.loss))).resolve()
    return [suite if suite in file.parents else file.parent]


def measure_backbone_share(
    context: Context, best: OpenTrial, energy_period_seconds: float, progress: Progress
) -> StageResult:
    """The best step of the full model and its plain backbone, in the same interleaved blocks.

    The FLOPs of both are counted: a full model whose FLOP/s come near those of its backbone
    wastes nothing around it.
    """
    with best(lab_of(context)) as trial:
        variants = [
            Variant(
                name="optimised",
                step=trial.step,
                settings=context.settings("float32"),
                samples_per_step=trial.samples_per_step,
                before_slot=trial.before_slot,
                after_slot=trial.after_slot,
            ),
            training_variant(context, name="backbone"),
        ]
        return measure_plan(
            Plan(variants),
            context,
            key="pace",
            title="Optimised full step against its backbone",
            energy_period_seconds=energy_period_seconds,
            progress=progress,
        )
