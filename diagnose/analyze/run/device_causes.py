"""Does the device do useful work, and is it the work that it is good at?"""

from __future__ import annotations

from diagnose.analyze import derive
from diagnose.analyze.findings import Finding
from diagnose.analyze.units import number, percent, percent_interval, scaled
from diagnose.analyze.verdicts import cannot_tell, cost_text, excluded
from diagnose.records.run import RunRecord

# Steps made of large matrix products with little else between them get this far.
BUSY_ATTAINABLE = 0.60
# Below this, memory traffic, launches or the host must take most of the step.
IDLE_ATTAINABLE = 0.30
# The run that this tool was first made for drew 44 % of its limit while the GPU waited for
# the host, and 71 % once it did not.
WAITING_POWER_SHARE = 0.50
WORKING_POWER_SHARE = 0.70
# NVML's utilisation is near 1 as soon as any kernel is always in flight.
BUSY_UTILIZATION = 0.80


def no_fast_half(record: RunRecord) -> list[Finding]:
    slow, fast = [], []
    full = derive.matmul_rate(record, "float32")
    for dtype in ("bfloat16", "float16"):
        half = derive.matmul_rate(record, dtype)
        if full is None or half is None:
            continue
        text = (
            f"a {dtype} matrix product runs at {scaled(half.center, 'FLOP/s')}, "
            f"a float32 one at {scaled(full.center, 'FLOP/s')}"
        )
        if half.high is not None and full.low is not None and half.high < full.low:
            slow.append(text)
        elif half.low is not None and full.high is not None and half.low > full.high:
            fast.append(text)
    cost = derive.stage_difference(record, "precision")
    if cost is not None and cost.seconds.low is not None and cost.seconds.high is not None:
        text = f"mixed precision minus full precision: {cost_text(cost)}"
        if cost.seconds.low > 0:
            slow.append(text)
        elif cost.seconds.high < 0:
            fast.append(text)
    if slow:
        return [
            Finding(
                "no_fast_half",
                "cause",
                "warning",
                "Half precision is slower than full precision on this device.",
                "; ".join(slow),
                "Train in float32 here (or TF32 where the device has it).",
            )
        ]
    if fast:
        return [excluded("no_fast_half", "Slow half precision", "; ".join(fast))]
    return []


def low_compute(record: RunRecord) -> list[Finding]:
    shares = [
        (key, measurement, derive.credible_share(record, measurement))
        for key in derive.HEADLINE_STAGES
        for measurement in derive.results(record, key)
    ]
    if not shares:
        return []
    # The operations of a user's full model may be uncountable while its backbone's are known.
    key, measurement, credible = next(
        (each for each in shares if each[2].value is not None), shares[0]
    )
    what = "the share of useful arithmetic"
    share = derive.attainable_interval(record, measurement)
    if credible.value is None or share is None:
        return [cannot_tell("low_compute", what, credible.reason)]
    evidence = (
        f"the {key} step runs at {percent_interval(share)} of the matrix-product rate that was "
        f"measured on this device in {derive.precision_name(measurement)}"
    )
    if share.low is not None and share.low >= BUSY_ATTAINABLE:
        return [excluded("low_compute", "Time without useful arithmetic", evidence)]
    if share.low is not None and share.low >= IDLE_ATTAINABLE:
        sentence = "Arithmetic takes a part of the step, and other work the rest."
        return [Finding("low_compute", "flag", "info", sentence, evidence)]
    if share.high is None or share.high >= IDLE_ATTAINABLE:
        return [cannot_tell("low_compute", what, evidence)]
    launches = derive.ceilings(record, "launch")
    if launches:
        empty = derive.operation_seconds(launches[0]).center
        evidence += f"; launching an empty operation costs {number(1e6 * empty, 3)} µs"
    return [
        Finding(
            "low_compute",
            "cause",
            "warning",
            "Something other than arithmetic takes most of the step.",
            evidence,
            "Look for many small operations, memory-bound ones and waits for the host; a larger "
            "batch or torch.compile reduces the first two.",
        )
    ]


def power(record: RunRecord) -> list[Finding]:
    found = derive.headline(record)
    if found is None or record.header.machine.device == "cpu":
        return []
    key, measurement = found
    share, busy = derive.power_share(measurement), derive.utilization(measurement)
    if share.value is None:
        return [cannot_tell("power", "whether the GPU waits", share.reason)]
    evidence = f"{key}: {percent(share.value)} of the power limit"
    if busy.value is not None:
        evidence += f" while NVML reports {percent(busy.value)} utilisation"
    others = _power_of_other_stages(record, key)
    if others:
        evidence += f"; for comparison {others}"
    if share.value >= WORKING_POWER_SHARE:
        return [excluded("power", "A waiting GPU", evidence)]
    if share.value >= WAITING_POWER_SHARE:
        sentence = "The GPU draws less power than a loaded one."
        return [Finding("power", "flag", "info", sentence, evidence)]
    in_flight = busy.value is not None and busy.value >= BUSY_UTILIZATION
    return [
        Finding(
            "power",
            "cause",
            "warning",
            "The GPU waits: some kernel is always in flight, yet little of the chip works."
            if in_flight
            else "The GPU waits for the host.",
            evidence,
            "Remove loops and synchronisations from the step, or give each kernel more work.",
        )
    ]


def _power_of_other_stages(record: RunRecord, but: str) -> str:
    texts = []
    for key in ("inference", "training", "precision", "real_data"):
        measurement = derive.result(record, key)
        if measurement is None or key == but:
            continue
        drawn = derive.watts(measurement)
        if drawn.value is not None:
            texts.append(f"{key} {drawn.value:.0f} W")
    return ", ".join(texts)
