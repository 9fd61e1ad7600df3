"""Which part of the model's own step is to blame?"""

from __future__ import annotations

from diagnose.analyze import derive
from diagnose.analyze.findings import Finding
from diagnose.analyze.units import percent
from diagnose.analyze.verdicts import cannot_tell, cost_text, excluded, judge_cost
from diagnose.records.run import RunRecord

# The backward pass costs twice the forward one, so 2/3 of a step is normal; above 4/5 the
# loss, the optimiser or a recomputation adds to it.
HEAVY_BACKWARD = 0.80


def around_backbone(record: RunRecord) -> list[Finding]:
    cost = derive.stage_difference(record, "full_model")
    if cost is None:
        return []
    return [
        judge_cost(
            "around_backbone",
            "The model around the backbone",
            cost,
            f"full model minus backbone on the same batches: {cost_text(cost)}",
            "Profile the parts that the full model adds: loops over samples, copies to the "
            "host and large temporaries are the usual ones.",
        )
    ]


def backward_and_optimizer(record: RunRecord) -> list[Finding]:
    cost = derive.stage_difference(record, "training")
    if cost is None:
        return []
    evidence = (
        f"training minus inference, which has neither loss nor dropout: {cost_text(cost)}; two "
        "thirds of the step is what a backward pass of twice the forward one takes"
    )
    if cost.share.low is not None and cost.share.low > HEAVY_BACKWARD:
        return [
            Finding(
                "backward_and_optimizer",
                "cause",
                "warning",
                f"Loss, backward and optimiser take {percent(cost.share.center)} of a training "
                "step.",
                evidence,
                "Use a fused optimiser or a larger batch; both spread the update over more work.",
            )
        ]
    if cost.share.high is not None and cost.share.high <= HEAVY_BACKWARD:
        return [excluded("backward_and_optimizer", "A heavy loss, backward or optimiser", evidence)]
    return [cannot_tell("backward_and_optimizer", "a heavy loss, backward or optimiser", evidence)]
