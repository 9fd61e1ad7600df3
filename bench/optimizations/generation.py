"""What can be tried on an evaluation? The knobs of two published guides, and their plans."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from bench.optimizations.generation_lab import (
    WORKERS,
    Evaluator,
    InLab,
    compare,
    compile_obstacle,
    copy_obstacle,
    open_settings,
    processes_obstacle,
    processes_of,
    token_facts,
    whole_batches,
    workers_here,
)
from bench.optimizations.generation_short import (
    BATCHES_OF_SHORT_ANSWERS,
    SHORT_ANSWERS,
    against_single_samples,
    fix_length,
    on_short_answers,
    with_work_for_loaders,
)
from bench.optimizations.lab import Changes
from diagnose.workload import Fact, Generation, Lab, Optimization, Treatment

# 32 → 48 and 64 in the guide about plans, whatever the size's own batch is.
GUIDE_BATCH = 32
HALF_MORE, DOUBLE = 1.5, 2.0
LIMITS = (16, 8)
# Three batches of the base are two that are half as large again, but two are one that is twice as
# large: on the CPU the bold plan asks less.
BOLD = "plan_b"
BOLD_BATCHES_ON_CPU = 2


@dataclass(frozen=True)
class Knob:
    """A change of the base. The plans are made of these."""

    optimization: Optimization
    changes: InLab


@dataclass(frozen=True)
class PlanParts:
    """A bundle that the guide names."""

    key: str
    title: str
    parts: tuple[str, ...]


# As the guide has them: 48 and 64 instead of 32, and eight cards, or as many as there are.
PLANS = (
    PlanParts(
        "plan_a",
        "Plan A, one device, careful",
        ("batch_half_more", "tokens_16", "workers_4", "pin_memory", "non_blocking"),
    ),
    PlanParts(
        "plan_b",
        "Plan B, one device, bold",
        ("batch_double", "tokens_8", "workers_4", "pin_memory", "non_blocking"),
    ),
    PlanParts(
        "plan_c",
        "Plan C, several devices",
        ("processes_2", "tokens_16", "workers_4", "pin_memory", "non_blocking"),
    ),
)


def make_treatment(generation: Generation) -> Treatment:
    """All that can be tried on a job that writes, in the order of the guides."""
    evaluator = Evaluator(generation)
    return Treatment(
        (
            *against_single_samples(evaluator),
            _knobs(with_work_for_loaders(evaluator))["workers_4"].optimization,
            *(_plan(evaluator, each) for each in PLANS),
            compare(
                evaluator,
                "compile",
                "torch.compile with a static cache",
                ("eager", {}),
                ("model.compile(), static cache", {"compile": True, "static_cache": True}),
                obstacle=compile_obstacle,
            ),
            *(fix_length(evaluator, limit) for limit in LIMITS),
            *on_short_answers(evaluator),
        ),
        mapped={
            "evaluation pass": open_settings(
                replace(evaluator, count=whole_batches(BATCHES_OF_SHORT_ANSWERS)),
                lambda lab: SHORT_ANSWERS,
            )
        },
        long_steps=True,
    )


def _knobs(evaluator: Evaluator) -> dict[str, Knob]:
    """Those that start from the base; each is one setting of it."""

    def knob(key: str, title: str, before: str, after: str, changes: Changes, **more: Any) -> Knob:
        made = compare(evaluator, key, title, (before, {}), (after, changes), **more)
        return Knob(made, lambda lab: changes)

    def limited(limit: int) -> Knob:
        changes = {"max_new_tokens": limit}
        return knob(
            f"tokens_{limit}",
            f"At most {limit} new tokens, natural stop",
            "max_new_tokens=32",
            f"max_new_tokens={limit}",
            changes,
            facts=token_facts(evaluator, {}, changes),
            claims_equality=False,
        )

    workers = workers_here()
    fewer = "" if workers == WORKERS else f", as many as cores; the guide has {WORKERS}"
    made = [
        _larger(evaluator, "batch_half_more", "Batches half as large again", HALF_MORE),
        _larger(evaluator, "batch_double", "Batches twice as large", DOUBLE),
        knob(
            "workers_4",
            f"{workers} loader process(es){fewer}",
            "num_workers=0",
            f"num_workers={workers}",
            {"workers": workers},
            facts=lambda lab: {"after_workers": workers, "batches": evaluator.batches(lab)},
        ),
        knob(
            "pin_memory",
            "Load into pinned memory",
            "pin_memory=False",
            "pin_memory=True",
            {"pin_memory": True},
            obstacle=copy_obstacle,
        ),
        *map(limited, LIMITS),
        knob(
            "non_blocking",
            "Copy batches without waiting",
            ".to(device)",
            ".to(device, non_blocking=True)",
            {"non_blocking": True},
            obstacle=copy_obstacle,
        ),
        _processes(evaluator),
    ]
    return {each.optimization.key: each for each in made}


def _larger(evaluator: Evaluator, key: str, title: str, factor: float) -> Knob:
    """A multiple of the size's own batch, known only in the lab."""

    def changes(lab: Lab) -> Changes:
        return {"batch_size": int(lab.size.batch_size * factor)}

    made = compare(
        evaluator,
        key,
        title,
        ("the size's own batch", {}),
        (f"{factor:g} times the size's own batch", changes),
        facts=lambda lab: {"after_batch_size": changes(lab)["batch_size"]},
    )
    return Knob(made, changes)


def _processes(evaluator: Evaluator) -> Knob:
    """As many as there are devices, known only in the lab."""

    def changes(lab: Lab) -> Changes:
        return {"processes": processes_of(lab)}

    def facts(lab: Lab) -> Mapping[str, Fact]:
        """What bounds the gain: a process cannot answer less than a batch."""
        processes = processes_of(lab)
        share = math.ceil(evaluator.count(lab) / processes)
        return {
            "after_processes": processes,
            "before_batches": evaluator.batches(lab),
            "after_batches": math.ceil(share / lab.size.batch_size),
        }

    made = compare(
        evaluator,
        "processes_2",
        "A process for each device, or 2 on the CPU, each with its share of the questions",
        ("1 process", {}),
        ("several processes", changes),
        obstacle=processes_obstacle,
        facts=facts,
    )
    return Knob(made, changes)


def _plan(evaluator: Evaluator, plan: PlanParts) -> Optimization:
    """All parts together, and each in the same blocks; what cannot act here is set all the same."""
    if plan.key == BOLD:
        evaluator = replace(evaluator, count=whole_batches(BOLD_BATCHES_ON_CPU))
    every = _knobs(evaluator)
    parts = [every[key] for key in plan.parts]

    def changes(lab: Lab) -> Changes:
        return {name: value for each in parts for name, value in each.changes(lab).items()}

    def facts(lab: Lab) -> Mapping[str, Fact]:
        used = changes(lab)
        inert = [key for key in plan.parts if every[key].optimization.obstacle(lab)]
        return {
            "may_change_answers": True,
            "parts": ", ".join(plan.parts),
            "inert": ", ".join(inert),
            "batch_scale": lab.size.batch_size / GUIDE_BATCH,
            "after_batch_size": used.get("batch_size", lab.size.batch_size),
            "after_processes": used.get("processes", 1),
            "after_max_new_tokens": used["max_new_tokens"],
        }

    def obstacle(lab: Lab) -> str:
        """Without its processes the last plan would be another one."""
        return processes_obstacle(lab) if "processes_2" in plan.parts else ""

    return compare(
        evaluator,
        plan.key,
        plan.title,
        ("as it was", {}),
        (plan.title, changes),
        claims_equality=False,
        facts=facts,
        obstacle=obstacle,
        parts=tuple(each.optimization for each in parts),
    )
