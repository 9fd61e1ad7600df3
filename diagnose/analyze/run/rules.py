"""What does a record prove? The rules in the order in which their findings are told."""

from __future__ import annotations

from collections.abc import Callable

from diagnose.analyze import flags
from diagnose.analyze.findings import Finding
from diagnose.analyze.run import device_causes, gpu_flags, input_causes, model_causes
from diagnose.analyze.run.answer import answer
from diagnose.records.run import RunRecord

__all__ = ["RULES", "answer", "judge"]

Rule = Callable[[RunRecord], list[Finding]]

# Causes stand in the order in which a user should act: from the part of the job that is the
# user's own code, over the data that feed it, to the device. Flags follow, because they say
# how far all that can be trusted: first what is missing, then what disturbed the run, then
# what the samples look like.
RULES: tuple[Rule, ...] = (
    model_causes.around_backbone,
    input_causes.input_bound,
    input_causes.loader_workers,
    input_causes.storage,
    input_causes.padding,
    device_causes.no_fast_half,
    device_causes.low_compute,
    device_causes.power,
    model_causes.backward_and_optimizer,
    flags.stages,
    flags.throttled,
    flags.shared,
    gpu_flags.link_below_maximum,
    gpu_flags.doubtful_identity,
    gpu_flags.doubtful_energy,
    flags.ceiling_exceeded,
    flags.not_steady,
    flags.imprecise,
    flags.noisy,
    flags.outliers,
)


def judge(record: RunRecord) -> list[Finding]:
    return [finding for rule in RULES for finding in rule(record)]
