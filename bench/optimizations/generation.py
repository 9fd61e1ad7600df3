"""What can be tried on an evaluation? The knobs of two published guides, and their plans."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from bench.optimizations.generation_lab import (
    WORKERS,
    Evaluator,
    InLab,
    compare,
    compile_obstacle,
    copy_obstacle,
    loader_obstacle,
    open_settings,
    processes_obstacle,
    processes_of,
    token_facts,
    whole_batches,
    workers_here,
)
from bench.optimizations.generation_short import (
    BATCHES_OF_SHORT_ANSWERS,
    ELSEWHERE,
    SHORT_ANSWERS,
    SINGLE_TOKENS,
    against_single_samples,
    fix_length,
    on_short_answers,
    with_work_for_loaders,
)
from bench.optimizations.lab import Changes
from diagnose.workload import Fact, Generation, Lab, Optimization, Treatment

# 32 → 48 and 64 in the guide about plans, whatever the size's own batch is.
HALF_MORE, DOUBLE = 1.5, 2.0
LIMITS = (16, 8)
# Three batches of the base are two that are half as large again, but two are one that is twice as
# large: on the CPU the bold plan and its own parts ask less, and nothing else is predicted of them.
BOLD = "plan_b"
BOLD_PARTS = ("batch_double", "tokens_8")
BOLD_BATCHES_ON_CPU = 2


@dataclass(frozen=True)
class Knob:
    """A change of the base. The plans are made of these."""

    optimization: Optimization
    changes: InLab
    # Why it is tried on other questions or answers here, so that no plan can be made of it.
    elsewhere: Callable[[Lab], str] = lambda lab: ""


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
    knobs = _knobs(evaluator)
    by_key = {each.optimization.key: each for each in knobs}
    plans = [_plan(evaluator, each, by_key) for each in PLANS]
    return Treatment(
        (
            *against_single_samples(evaluator),
            *(each.optimization for each in knobs),
            *(fix_length(evaluator, limit) for limit in LIMITS),
            *on_short_answers(evaluator),
            *plans,
        ),
        mapped={
            "evaluation pass": open_settings(
                replace(evaluator, count=whole_batches(BATCHES_OF_SHORT_ANSWERS)),
                lambda lab: SHORT_ANSWERS,
            )
        },
        long_steps=True,
    )


def _knobs(evaluator: Evaluator) -> list[Knob]:
    """Those that start from the base; each is one setting of it."""

    def knob(key: str, title: str, before: str, after: str, changes: Changes, **more: Any) -> Knob:
        asked = _asking(evaluator, key)
        made = compare(asked, key, title, (before, {}), (after, changes), **more)
        return Knob(made, lambda lab: changes)

    def limited(limit: int) -> Knob:
        key, changes = f"tokens_{limit}", {"max_new_tokens": limit}
        return knob(
            key,
            f"At most {limit} new tokens, natural stop",
            "max_new_tokens=32",
            f"max_new_tokens={limit}",
            changes,
            facts=token_facts(_asking(evaluator, key), {}, changes),
            claims_equality=False,
        )

    return [
        _larger(evaluator, "batch_half_more", "Batches half as large again", HALF_MORE),
        _larger(evaluator, "batch_double", "Batches twice as large", DOUBLE),
        _workers(evaluator),
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
        knob(
            "compile",
            "torch.compile with a static cache",
            "eager",
            "model.compile(), static cache",
            {"compile": True, "static_cache": True},
            obstacle=compile_obstacle,
        ),
    ]


def _asking(evaluator: Evaluator, key: str) -> Evaluator:
    """With the questions of the plan that the change belongs to."""
    if key in (BOLD, *BOLD_PARTS):
        return replace(evaluator, count=whole_batches(BOLD_BATCHES_ON_CPU))
    return evaluator


def _larger(evaluator: Evaluator, key: str, title: str, factor: float) -> Knob:
    """A multiple of the size's own batch, known only in the lab."""

    def changes(lab: Lab) -> Changes:
        return {"batch_size": int(lab.size.batch_size * factor)}

    made = compare(
        _asking(evaluator, key),
        key,
        title,
        ("the size's own batch", {}),
        (f"{factor:g} times the size's own batch", changes),
        facts=lambda lab: {"after_batch_size": changes(lab)["batch_size"]},
    )
    return Knob(made, changes)


def _workers(evaluator: Evaluator) -> Knob:
    """On the base where its batches are enough to load ahead, else on as many single tokens."""
    enough, workers = with_work_for_loaders(evaluator), workers_here()
    changes: Changes = {"workers": workers}

    def elsewhere(lab: Lab) -> str:
        return loader_obstacle(evaluator, lab)

    def start(lab: Lab) -> Changes:
        return SINGLE_TOKENS if elsewhere(lab) else {}

    def facts(lab: Lab) -> Mapping[str, Fact]:
        where = {"answer_tokens": 1, **ELSEWHERE} if elsewhere(lab) else {}
        return {"after_workers": workers, "batches": enough.batches(lab), **where}

    fewer = "" if workers == WORKERS else f", as many as cores; the guide has {WORKERS}"
    made = compare(
        enough,
        "workers_4",
        f"{workers} loader process(es){fewer}",
        ("num_workers=0", start),
        (f"num_workers={workers}", lambda lab: {**start(lab), **changes}),
        facts=facts,
    )
    return Knob(made, lambda lab: changes, elsewhere)


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


def _plan(evaluator: Evaluator, plan: PlanParts, knobs: Mapping[str, Knob]) -> Optimization:
    """All parts that can act here; those that cannot are named."""
    evaluator = _asking(evaluator, plan.key)

    def why_not(key: str, lab: Lab) -> str:
        return knobs[key].optimization.obstacle(lab) or knobs[key].elsewhere(lab)

    def usable(lab: Lab) -> list[str]:
        return [key for key in plan.parts if not why_not(key, lab)]

    def changes(lab: Lab) -> Changes:
        merged: dict[str, Fact] = {}
        for key in usable(lab):
            merged.update(knobs[key].changes(lab))
        return merged

    def facts(lab: Lab) -> Mapping[str, Fact]:
        used = changes(lab)
        reasons = [f"{key} ({why})" for key in plan.parts if (why := why_not(key, lab))]
        left_out: Mapping[str, Fact] = {"left_out": "; ".join(reasons)} if reasons else {}
        return {
            **left_out,
            "may_change_answers": True,
            "parts": ", ".join(usable(lab)),
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
    )
