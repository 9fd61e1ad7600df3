"""What does a record prove? One row for each suspect, and how it is judged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from diagnose.analyze import derive
from diagnose.analyze.findings import Finding
from diagnose.analyze.flags import Severity, Sign, collect, find_flags, placed
from diagnose.analyze.run.answer import answer
from diagnose.analyze.run.loader import compare_loaders, loading_bound
from diagnose.analyze.units import milliseconds, number, percent, percent_interval, scaled
from diagnose.analyze.verdicts import MATTERS, cannot_tell, cost_text, excluded, judge_cost
from diagnose.records.run import RunRecord

__all__ = ["SUSPECTS", "answer", "judge"]

# At a third of padding, sorting by length buys more than most kernel work.
MUCH_PADDING = 0.30
# The backward pass costs twice the forward one, so 2/3 of a step is normal; above 4/5 the
# loss, the optimizer or a recomputation adds to it.
HEAVY_BACKWARD = 0.80
# Steps made of large matrix products with little else between them get this far.
BUSY_ATTAINABLE = 0.60
# Below this, memory traffic, launches or the host must take most of the step.
IDLE_ATTAINABLE = 0.30
# Below it, a memory of any speed would leave half of the step.
MOSTLY_MOVING = 0.50
# The run that this tool was first made for drew 44 % of its limit while the GPU waited for
# the host, and 71 % once it did not.
WAITING_POWER_SHARE = 0.50
WORKING_POWER_SHARE = 0.70
# NVML's utilization is near 1 as soon as any kernel is always in flight.
BUSY_UTILIZATION = 0.80


@dataclass(frozen=True)
class Suspect:
    """Something that may be to blame for a slow step."""

    kind: str  # stable key
    name: str
    sentence: str  # said of it when it is the cause
    advice: str
    # How it is judged; None where nothing was measured.
    judge: Callable[[Suspect, RunRecord], Finding | None]

    def cause(self, evidence: str, sentence: str = "", advice: str = "") -> Finding:
        words = (sentence or self.sentence, evidence, advice or self.advice)
        return Finding(self.kind, "cause", "warning", *words)

    def flag(self, evidence: str, sentence: str = "", advice: str = "") -> Finding:
        """Neither guilty nor innocent, but worth knowing."""
        return Finding(self.kind, "flag", "info", sentence or self.sentence, evidence, advice)

    def excluded(self, evidence: str) -> Finding:
        return excluded(self.kind, self.name, evidence)

    def cannot_tell(self, evidence: str) -> Finding:
        return cannot_tell(self.kind, self.name, evidence)

    def cost(self, cost: derive.Difference, evidence: str) -> Finding:
        return judge_cost(self.kind, self.name, cost, evidence, self.advice)


def judge(record: RunRecord) -> list[Finding]:
    """The suspects in the order in which a user should act, then how far all that holds."""
    judged = (suspect.judge(suspect, record) for suspect in SUSPECTS)
    return [
        *(finding for finding in judged if finding is not None),
        *_broken_stages(record),
        *find_flags(record.header.machine, placed(record.stages)),
        *collect(
            "ceiling_exceeded",
            "A step is faster than the ceiling that was measured for it.",
            _exceeded(record),
            "Do not use the share of attainable of this run; the ceiling was disturbed.",
        ),
    ]


def _around_backbone(suspect: Suspect, record: RunRecord) -> Finding | None:
    cost = derive.stage_difference(record, "full_model")
    if cost is None:
        return None
    evidence = f"full model minus backbone on the same batches: {cost_text(cost)}"
    return suspect.cost(cost, evidence)


def _input_bound(suspect: Suspect, record: RunRecord) -> Finding | None:
    cost = derive.stage_difference(record, "real_data")
    if cost is None:
        return None
    evidence = f"loading minus the same step on resident batches: {cost_text(cost)}"
    loader = derive.fastest(derive.results(record, "loader"))
    if loader is not None:
        seconds = derive.step_seconds(loader)
        evidence += f"; the loader alone needs {milliseconds(seconds)} ms per batch at best"
    finding = suspect.cost(cost, evidence)
    bound = loading_bound(record)
    if finding.verdict == "cannot tell" and bound is not None and bound <= MATTERS:
        evidence += (
            f", at most {percent(bound)} of the step, and it ran in the training process "
            "itself, where it can disturb nothing else"
        )
        return suspect.excluded(evidence)
    return finding


def _loader_setting(suspect: Suspect, record: RunRecord) -> Finding | None:
    gap = compare_loaders(record, {"loader_workers": "workers"}.get(suspect.kind, suspect.kind))
    if gap is None:
        return None
    if gap.matters is None:
        return suspect.cannot_tell(gap.evidence)
    if not gap.matters:
        return suspect.excluded(gap.evidence)
    tell = suspect.cause if gap.in_use else suspect.flag
    return tell(gap.evidence, advice=f"Use {gap.best}, the faster one here.")


def _padding(suspect: Suspect, record: RunRecord) -> Finding | None:
    data = record.workload.data
    if data is None:
        if "real_data" not in record.planned:
            return None
        return suspect.cannot_tell(record.workload.data_reason or "the data were not described")
    evidence = f"{percent(data.padding_share)} of all token slots of the data are padding"
    if data.padding_share <= MUCH_PADDING:
        return suspect.excluded(evidence)
    sentence = f"Padding costs at most {percent(data.padding_share)} of the step."
    return suspect.cause(evidence, sentence)


def _no_fast_half(suspect: Suspect, record: RunRecord) -> Finding | None:
    slow, fast = [], []
    full = derive.matmul_rate(record, "float32")
    for dtype in ("bfloat16", "float16"):
        half = derive.matmul_rate(record, dtype)
        if full is None or half is None or full.ends is None or half.ends is None:
            continue
        text = (
            f"a {dtype} matrix product runs at {scaled(half.center, 'FLOP/s')}, "
            f"a float32 one at {scaled(full.center, 'FLOP/s')}"
        )
        if half.ends[1] < full.ends[0]:
            slow.append(text)
        elif half.ends[0] > full.ends[1]:
            fast.append(text)
    cost = derive.stage_difference(record, "precision")
    if cost is not None and cost.seconds.ends is not None:
        text = f"mixed precision minus full precision: {cost_text(cost)}"
        # A whole step decides: a slow type is no cause where another one is the device's own.
        if cost.seconds.ends[0] > 0:
            return suspect.cause("; ".join([*slow, text]))
        if cost.seconds.ends[1] < 0:
            return suspect.excluded("; ".join([text, *fast, *slow]))
    if fast:
        return suspect.excluded("; ".join([*fast, *slow]))
    return suspect.cause("; ".join(slow)) if slow else None


def _low_compute(suspect: Suspect, record: RunRecord) -> Finding | None:
    shares = [
        (key, measurement, derive.credible_share(record, measurement))
        for key in derive.HEADLINE_STAGES
        for measurement in derive.results(record, key)
    ]
    if not shares:
        return None
    # The operations of a user's full model may be uncountable while its backbone's are known.
    known = (each for each in shares if each[2].value is not None)
    key, measurement, credible = next(known, shares[0])
    share = derive.attainable_interval(record, measurement)
    if credible.value is None or share is None:
        return suspect.cannot_tell(credible.reason)
    evidence = (
        f"the {key} step runs at {percent_interval(share)} of the matrix-product rate that was "
        f"measured on this device in {derive.precision_name(measurement)}"
    )
    if share.ends is None or share.ends[0] < IDLE_ATTAINABLE <= share.ends[1]:
        return suspect.cannot_tell(evidence)
    if share.ends[0] >= BUSY_ATTAINABLE:
        return suspect.excluded(evidence)
    if share.ends[0] >= IDLE_ATTAINABLE:
        sentence = "Arithmetic takes a part of the step, and other work the rest."
        return suspect.flag(evidence, sentence)
    launches = derive.ceilings(record, "launch")
    if launches:
        empty = derive.operation_seconds(launches[0]).center
        evidence += f"; launching an empty operation costs {number(1e6 * empty, 3)} µs"
    return suspect.cause(evidence)


def _memory_bound(suspect: Suspect, record: RunRecord) -> Finding | None:
    """The counted bytes are too many rather than too few, so that only innocence is proven."""
    for key in derive.HEADLINE_STAGES:
        for each in derive.results(record, key):
            share = derive.moving_share(record, each)
            if share is None:
                continue
            evidence = (
                f"the operands of a {key} step are {scaled(each.bytes_per_step.value or 0, 'B')}; "
                "moving them all, at the measured rate of this memory, would take "
                f"{percent_interval(share)} of it, less what caches save"
            )
            if share.high is not None and share.high <= MOSTLY_MOVING:
                return suspect.excluded(evidence)
            if share.low is not None and share.low > MOSTLY_MOVING:
                return suspect.flag(evidence, advice=suspect.advice)
            return suspect.cannot_tell(evidence)
    return None


def _power(suspect: Suspect, record: RunRecord) -> Finding | None:
    found = derive.headline(record)
    if found is None or record.header.machine.device == "cpu":
        return None
    key, measurement = found
    share, busy = derive.power_share(measurement), derive.utilization(measurement)
    if share.value is None:
        return suspect.cannot_tell(share.reason)
    evidence = f"{key}: {percent(share.value)} of the power limit"
    if busy.value is not None:
        evidence += f" while NVML reports {percent(busy.value)} utilization"
    others = _power_of_other_stages(record, key)
    if others:
        evidence += f"; for comparison {others}"
    if share.value >= WORKING_POWER_SHARE:
        return suspect.excluded(evidence)
    if share.value >= WAITING_POWER_SHARE:
        return suspect.flag(evidence, "The GPU draws less power than a loaded one.")
    if busy.value is not None and busy.value >= BUSY_UTILIZATION:
        sentence = "The GPU waits: some kernel is always in flight, yet little of the chip works."
        return suspect.cause(evidence, sentence)
    return suspect.cause(evidence)


def _power_of_other_stages(record: RunRecord, but: str) -> str:
    keys = [key for key in ("inference", "training", "precision", "real_data") if key != but]
    measured = [(key, derive.result(record, key)) for key in keys]
    drawn = [(key, derive.watts(each).value) for key, each in measured if each is not None]
    return ", ".join(f"{key} {watts:.0f} W" for key, watts in drawn if watts is not None)


def _backward_and_optimizer(suspect: Suspect, record: RunRecord) -> Finding | None:
    cost = derive.stage_difference(record, "training")
    if cost is None:
        return None
    evidence = (
        f"training minus inference, which has neither loss nor dropout: {cost_text(cost)}; two "
        "thirds of the step is what a backward pass of twice the forward one takes"
    )
    if cost.share.ends is None or cost.share.ends[0] <= HEAVY_BACKWARD < cost.share.ends[1]:
        return suspect.cannot_tell(evidence)
    if cost.share.ends[1] <= HEAVY_BACKWARD:
        return suspect.excluded(evidence)
    share = percent(cost.share.center)
    sentence = f"Loss, backward and optimizer take {share} of a training step."
    return suspect.cause(evidence, sentence)


# From the part of the job that is the user's own code, over the data that feed it, to the device.
SUSPECTS: tuple[Suspect, ...] = (
    Suspect(
        "around_backbone",
        "The model around the backbone",
        "",
        "Profile the parts that the full model adds: loops over samples, copies to the host and "
        "large temporaries are the usual ones.",
        _around_backbone,
    ),
    Suspect(
        "input_bound",
        "The input pipeline",
        "",
        "Use more loader workers or another storage: the loader table shows what each is worth "
        "here. Preprocessing the data once, pinned memory and copies that do not block are worth "
        "a try; this run did not compare them.",
        _input_bound,
    ),
    Suspect(
        "loader_workers",
        "The number of loader workers",
        "The number of loader workers matters on this machine.",
        "",
        _loader_setting,
    ),
    Suspect(
        "storage",
        "The way the data are stored",
        "The way the data are stored matters on this machine.",
        "",
        _loader_setting,
    ),
    Suspect(
        "padding",
        "Padding",
        "",
        "Bucket the sentences by length, or pad to the longest of each batch.",
        _padding,
    ),
    Suspect(
        "no_fast_half",
        "Slow half precision",
        "Half precision is slower than full precision on this device.",
        "Train in float32 here (or TF32 where the device has it).",
        _no_fast_half,
    ),
    Suspect(
        "low_compute",
        "Time without useful arithmetic",
        "Something other than arithmetic takes most of the step.",
        "Look for many small operations, memory-bound ones and waits for the host; a larger "
        "batch or torch.compile reduces the first two.",
        _low_compute,
    ),
    Suspect(
        "memory_bound",
        "Memory bandwidth",
        "Moving operands may take most of the step.",
        "Fuse small operations (torch.compile, fused optimizers), or compute in half precision.",
        _memory_bound,
    ),
    Suspect(
        "power",
        "A waiting GPU",
        "The GPU waits for the host.",
        "Remove loops and synchronizations from the step, or give each kernel more work.",
        _power,
    ),
    Suspect(
        "backward_and_optimizer",
        "A heavy loss, backward or optimizer",
        "",
        "Use a fused optimizer or a larger batch; both spread the update over more work.",
        _backward_and_optimizer,
    ),
)

_FATE: dict[str, tuple[Severity, str]] = {
    "skipped": ("info", "was skipped"),
    "failed": ("critical", "failed"),
    "hung": ("critical", "hung and was stopped"),
    "invalid": ("critical", "was measured but is not valid"),
}


def _broken_stages(record: RunRecord) -> Iterator[Finding]:
    """Stages that did not end well, and those that were never reached."""
    for stage in record.stages:
        if stage.status != "done":
            severity, fate = _FATE[stage.status]
            sentence = f"The stage {stage.key} {fate}."
            yield Finding(f"stage_{stage.status}", "flag", severity, sentence, stage.reason)
    reached = {stage.key for stage in record.stages}
    missing = [key for key in record.planned if key not in reached]
    if missing or not record.complete:
        yield Finding(
            "unfinished",
            "flag",
            "critical",
            "The run was not finished.",
            f"not reached: {', '.join(missing) or 'none, it ended after the last stage'}",
            "Run it again; what is shown was measured before it ended.",
        )


def _exceeded(record: RunRecord) -> Iterator[Sign]:
    for place, each in placed(record.stages):
        share = derive.attainable_share(record, each).value
        if share is not None and share > derive.CEILING_EXCEEDED:
            yield "warning", f"{place}: {percent(share)}"
