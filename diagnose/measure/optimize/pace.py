"""Is anything left to gain? The best step of the full model, held against its plain backbone.

Both run in the same interleaved blocks, and the FLOPs of both are counted: a full model whose
FLOP/s come near those of its backbone wastes nothing around it.
"""

from __future__ import annotations

from diagnose.measure.clock import Progress
from diagnose.measure.optimize.experiment import lab_of
from diagnose.measure.stage import measure_plan
from diagnose.measure.stages.plan import Context, Plan, Variant
from diagnose.measure.stages.training import training_variant
from diagnose.records.run import StageResult
from diagnose.workload import OpenTrial

TITLE = "Optimised full step against its backbone"


def measure_pace(
    context: Context, best: OpenTrial, energy_period_seconds: float, progress: Progress
) -> StageResult:
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
            title=TITLE,
            energy_period_seconds=energy_period_seconds,
            progress=progress,
        )
