"""What does an `optimize` of an evaluation look like? Records with known gains."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from diagnose.records.experiments import Comparison, Equality, EqualityCheck, OptimizeRecord
from diagnose.records.header import Setting
from tests.support.records.experiments import compare, ended, optimize_record, wrong

PASS = "evaluation pass"
ELSEWHERE: Mapping[str, Setting] = {"starts_elsewhere": True}
NO_COPY = "not applicable on the CPU: batches are not copied to another device"
# By limit: the share of the reference answers that fits.
COVERAGE = {32: 1.0, 16: 0.995, 8: 0.9}


def tried(key: str, ratio: float | None, **options: object) -> Comparison:
    return compare(key, ratio, scope=PASS, **options)  # type: ignore[arg-type]


def answers(changed: int, of: int = 8) -> Equality:
    check = EqualityCheck("per sample tokens", 0.0, float(changed > 0), changed, of, changed == 0)
    return Equality((check,), "not claimed")


def limit(tokens: int, ratio: float, changed: int, *, natural: bool = True) -> Comparison:
    """A lower limit: of 32 tokens of a fixed length, or of answers of 6 tokens on average."""
    written = (6.0, min(6.0, tokens)) if natural else (32.0, float(tokens))
    facts: dict[str, Setting] = {
        "may_change_answers": True,
        "natural_stop": natural,
        "reference_answers": 200,
        "reference_mean_tokens": 6.0,
        "longest_reference": 30,
        "within_10_tokens_share": 0.92,
        "before_max_new_tokens": 32,
        "after_max_new_tokens": tokens,
        "before_mean_tokens": written[0],
        "after_mean_tokens": written[1],
        "before_coverage_share": COVERAGE[32],
        "after_coverage_share": COVERAGE[tokens],
        **({} if natural else ELSEWHERE),
    }
    key = f"tokens_{tokens}" if natural else f"fixed_{tokens}"
    return tried(key, ratio, equality=answers(changed), facts=facts)


def plan(letter: str, ratio: float | None, parts: str, changed: int = 0) -> Comparison:
    facts: dict[str, Setting] = {
        "may_change_answers": True,
        "parts": parts,
        "inert": "pin_memory" if "pin_memory" in parts else "",
        "batch_scale": 0.125,
        "after_batch_size": 64 if letter == "b" else 32,
        "after_processes": 2 if letter == "c" else 1,
        "after_max_new_tokens": 8 if letter == "b" else 16,
    }
    made = tried(f"plan_{letter}", ratio, equality=answers(changed), facts=facts)
    return replace(made, title=f"Plan {letter.upper()}")


def bundle(whole: Comparison, *parts: Comparison) -> tuple[Comparison, ...]:
    """A plan and its parts, timed in the same blocks."""
    within = {"within": whole.key}
    together = [
        replace(each, before=whole.before, control=whole.control, facts={**each.facts, **within})
        if each.before is not None
        else replace(each, facts=within)
        for each in parts
    ]
    return (*together, whole)


def single(size: int, ratio: float) -> Comparison:
    """Batches against single samples."""
    facts = {"before_batch_size": 1, "after_batch_size": size, **ELSEWHERE}
    return tried(f"batch_{size}", ratio, facts=facts)


def skipped(key: str, reason: str = NO_COPY) -> Comparison:
    return replace(ended(key, "skipped", reason), scope=PASS)


def generation_record(
    *comparisons: Comparison, gpus: int = 0, samples: int | None = None, workload: str = "textgen"
) -> OptimizeRecord:
    record = optimize_record(*comparisons, gpus=gpus)
    return replace(record, workload=replace(record.workload, name=workload), samples=samples)


def whole_generation(samples: int | None = None, gpus: int = 0) -> OptimizeRecord:
    """What a sound run on a CPU finds."""
    return generation_record(
        single(2, 1.7),
        single(4, 2.7),
        wrong("batch_4", scope=PASS),
        single(8, 3.4),
        single(16, 3.5),
        skipped("compile", "on the CPU transformers never compiles generation"),
        limit(16, 2.0, 8, natural=False),
        limit(8, 3.9, 8, natural=False),
        tried("prefetch_2", 1.0, facts=ELSEWHERE),
        tried("config_once", 1.0, facts={"one_construction_microseconds": 8.0, **ELSEWHERE}),
        tried("log_once", 1.0, facts=ELSEWHERE),
        tried("score_at_once", 1.0, facts=ELSEWHERE),
        tried("kv_cache", 1.5, facts=ELSEWHERE),
        tried("static_cache", 1.0, facts=ELSEWHERE),
        tried("bfloat16", 0.8, equality=answers(2), facts=ELSEWHERE),
        tried("sort_by_length", 1.02, facts=ELSEWHERE),
        *bundle(
            plan("a", 1.1, "batch_half_more, tokens_16, workers_4, pin_memory"),
            tried("batch_half_more", 1.2, facts={"after_batch_size": 48}),
            limit(16, 1.05, 0),
            tried("workers_4", 0.9),
            skipped("pin_memory"),
        ),
        *bundle(
            plan("b", 1.6, "batch_double, tokens_8, workers_4", changed=3),
            tried("batch_double", 1.4, facts={"after_batch_size": 64}, peaks=(1e9, 1.2e9)),
            limit(8, 1.3, 3),
            tried("workers_4", 0.9),
        ),
        *bundle(
            plan("c", 1.7, "processes_2, tokens_16, workers_4"),
            tried("processes_2", 1.8, facts={"after_processes": 2}),
            limit(16, 1.05, 0),
            tried("workers_4", 0.9),
        ),
        gpus=gpus,
        samples=samples,
    )
