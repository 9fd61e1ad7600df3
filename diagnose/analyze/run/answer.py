"""What is the answer in one sentence? Where the time of a step goes, as far as it was measured."""

from __future__ import annotations

from collections.abc import Sequence

from diagnose.analyze import derive
from diagnose.analyze.findings import Finding
from diagnose.analyze.units import milliseconds, number, percent
from diagnose.records.run import Measurement, RunRecord

# What the step of each headline stage is, and on what it ran.
_STEPS = {
    "full_model": ("A training step of the full {}", "on real data"),
    "real_data": ("A training step of {}", "on real data"),
    "training": ("A training step of {}", "on a synthetic batch"),
    "inference": ("An inference step of {}", "on a synthetic batch"),
}
_AROUND = "the model around the backbone"
_TRAINING = "loss, backward and optimizer"
_INPUT_WORDS = {
    "cause": "fix this first",
    "excluded": "nothing that matters",
    "cannot tell": "too uncertain to judge",
}


def answer(record: RunRecord, findings: Sequence[Finding]) -> str:
    found = derive.headline(record)
    if found is None:
        return f"No step {_why_nothing(record)}."
    key, measurement = found
    parts = [
        _step(record, key, measurement),
        *_largest_part(record, key, measurement),
        *_input(record, findings),
        *_arithmetic(record, measurement),
    ]
    return "; ".join(parts) + "." + _missing(record, findings)


def _step(record: RunRecord, key: str, measurement: Measurement) -> str:
    subject, place = _STEPS[key]
    words = [record.workload.size]
    for name, label in (("batch_size", "batch "), ("sequence_length", "length "), ("dtype", "")):
        value = measurement.settings.get(name)
        if value is not None:
            words.append(f"{label}{value}")
    text = (
        f"{subject.format(record.workload.name)} ({', '.join(words)}) takes "
        f"{milliseconds(derive.step_seconds(measurement))} ms {place}"
    )
    speed = derive.samples_per_second(measurement)
    return text if speed.value is None else f"{text}, {number(speed.value, 3)} samples/s"


def _largest_part(record: RunRecord, key: str, step: Measurement) -> list[str]:
    source = "full_model" if key == "full_model" else "training"
    cost, measured = derive.stage_difference(record, source), derive.result(record, source)
    if cost is None or measured is None or key == "inference":
        return []
    part = _AROUND if key == "full_model" else _TRAINING
    # The milliseconds come from another stage. They are a part of this step only if that stage
    # ran the same job and was not slower than this one; else the share is all that carries over.
    whole = derive.step_seconds(step)
    same = all(measured.settings.get(n) == step.settings.get(n) for n in ("dtype", "batch_size"))
    if same and derive.step_seconds(measured).center <= (whole.high or whole.center):
        return [f"{number(1e3 * cost.seconds.center, 3)} ms of it is {part}"]
    dtype = measured.settings.get("dtype")
    return [f"in {dtype}, {percent(cost.share.center)} of a training step is {part}"]


def _input(record: RunRecord, findings: Sequence[Finding]) -> list[str]:
    cost = derive.stage_difference(record, "real_data")
    verdict = next((each.verdict for each in findings if each.kind == "input_bound"), None)
    if cost is None or verdict is None:
        return []
    return [f"the input pipeline adds {milliseconds(cost.seconds)} ms: {_INPUT_WORDS[verdict]}"]


def _arithmetic(record: RunRecord, measurement: Measurement) -> list[str]:
    share = derive.credible_share(record, measurement).value
    if share is None:
        return []
    return [f"arithmetic runs at {percent(share)} of what this device attains"]


def _missing(record: RunRecord, findings: Sequence[Finding]) -> str:
    broken = [stage.key for stage in record.stages if stage.status not in ("done", "skipped")]
    text = f" Not measured: {', '.join(broken)} (see the flags)." if broken else ""
    if any(each.kind == "unfinished" for each in findings):
        text += " The run was not finished."
    return text


def _why_nothing(record: RunRecord) -> str:
    if not set(derive.HEADLINE_STAGES) & set(record.planned):
        return "of the job was measured: only other stages were asked for"
    for stage in record.stages:
        if stage.status != "done" and stage.key in derive.HEADLINE_STAGES:
            why = stage.reason.rstrip(".")
            return f"could be measured: the stage {stage.key} {stage.status} ({why})"
    return "could be measured: the run ended before the first step was timed"
