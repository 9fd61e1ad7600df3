"""What do changes gain that are tried elsewhere than on the base? Short answers, or fixed ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bench.optimizations.generation_lab import (
    BATCHES_PER_WORKER,
    Evaluator,
    bfloat16_obstacle,
    compare,
    config_facts,
    padding_facts,
    side,
    token_facts,
    whole_batches,
    workers_here,
)
from bench.optimizations.lab import Changes, Facts
from diagnose.workload import Fact, Lab, Optimization

# Single samples against these: the table of the guide about batches.
BATCHES = (2, 4, 8, 16)
# Whole batches of each of them; accelerators answer more in the same time.
QUESTIONS_OF_BATCHES_ON_CPU, QUESTIONS_OF_BATCHES = 8, 48
# The guide's default batch; its program cuts answers where an unpadded prompt would end.
PUBLISHED_BATCH = 4
FIXED: Changes = {"natural_stop": False}
# What does not depend on how long answers are is tried where they cost least: what it gains
# there is the most that it can gain.
SHORT = 2  # tokens: one that follows from the prompt, and one from the token before
SHORT_ANSWERS: Changes = {**FIXED, "max_new_tokens": SHORT}
SINGLE_TOKENS: Changes = {**FIXED, "max_new_tokens": 1}
# Of short answers a CPU gets two batches; of single tokens enough for what happens once per batch.
BATCHES_OF_SHORT_ANSWERS, BATCHES_OF_SINGLE_TOKENS = 2, 6
ELSEWHERE: Mapping[str, Fact] = {"starts_elsewhere": True}


def against_single_samples(evaluator: Evaluator) -> list[Optimization]:
    return [_batch(evaluator, size) for size in BATCHES]


def _batch(evaluator: Evaluator, size: int) -> Optimization:
    """Against single samples."""
    on_cpu = max(size, QUESTIONS_OF_BATCHES_ON_CPU)
    evaluator = replace(
        evaluator,
        count=lambda lab: on_cpu if lab.device.type == "cpu" else QUESTIONS_OF_BATCHES,
    )

    single: Changes = {**SHORT_ANSWERS, "batch_size": 1}
    batched: Changes = {**SHORT_ANSWERS, "batch_size": size}
    cut: Changes = {**batched, "cut_at_own_length": True}
    published = (side(evaluator, "answers cut at each prompt's own length", cut),)
    return compare(
        evaluator,
        f"batch_{size}",
        f"Batches of {size} instead of single samples, answers of {SHORT} tokens",
        ("single samples", single),
        (f"batches of {size}", batched),
        published=published if size == PUBLISHED_BATCH else (),
        facts=lambda lab: {
            "before_batch_size": 1,
            "after_batch_size": size,
            "answer_tokens": SHORT,
            **ELSEWHERE,
        },
    )


def fix_length(evaluator: Evaluator, limit: int) -> Optimization:
    """Everybody writes to the limit: never an equal speed-up, always other answers."""
    # On the CPU a limit costs tenths of a second even for one batch.
    evaluator = replace(evaluator, count=whole_batches(on_cpu=1))
    after: Changes = {**FIXED, "max_new_tokens": limit}
    tokens = token_facts(evaluator, FIXED, after)
    return compare(
        evaluator,
        f"fixed_{limit}",
        f"Exactly {limit} new tokens instead of 32",
        ("exactly 32 tokens", FIXED),
        (f"exactly {limit} tokens", after),
        claims_equality=False,
        facts=lambda lab: {**tokens(lab), **ELSEWHERE},
    )


def on_short_answers(evaluator: Evaluator) -> list[Optimization]:
    """What happens once per batch, prompt or token."""
    enough = with_work_for_loaders(evaluator)
    batches = replace(evaluator, count=whole_batches(BATCHES_OF_SINGLE_TOKENS))
    tokens = replace(evaluator, count=whole_batches(BATCHES_OF_SHORT_ANSWERS))
    # Without a cache each token costs all tokens before it, so that it takes some to tell.
    four_tokens = {**SHORT_ANSWERS, "max_new_tokens": 4}
    loads_ahead = {**SINGLE_TOKENS, "workers": workers_here()}
    return [
        # With so many batches that one side holds them all no sooner than the other.
        _elsewhere(
            enough,
            loads_ahead,
            "prefetch_2",
            "2 batches ahead per loader process (the default)",
            ("prefetch_factor=1", {"prefetch": 1}),
            ("prefetch_factor=2", {"prefetch": 2}),
            lambda lab: {"after_workers": workers_here(), "batches": enough.batches(lab)},
        ),
        _elsewhere(
            batches,
            SINGLE_TOKENS,
            "config_once",
            "Build GenerationConfig once",
            ("for each batch", {}),
            ("before the loop", {"config_per_batch": False}),
            config_facts,
        ),
        _elsewhere(
            batches,
            SINGLE_TOKENS,
            "log_once",
            "Log the first batch only",
            ("every batch is logged", {}),
            ("the first batch is logged", {"log_every_batch": False}),
            lambda lab: {"batches": batches.batches(lab)},
        ),
        _elsewhere(
            batches,
            SINGLE_TOKENS,
            "score_at_once",
            "Score all answers at once",
            ("sample by sample, between batches", {}),
            ("all after the last batch, each text read once", {"score_per_sample": False}),
        ),
        # The base has the cache already: this shows what it saves.
        _elsewhere(
            tokens,
            four_tokens,
            "kv_cache",
            "Keep keys and values of earlier tokens",
            ("use_cache=False", {"use_cache": False}),
            ("use_cache=True", {}),
        ),
        _elsewhere(
            tokens,
            SHORT_ANSWERS,
            "bfloat16",
            "Weights and activations in bfloat16",
            ("float32", {}),
            ("bfloat16", {"dtype": "bfloat16"}),
            obstacle=bfloat16_obstacle,
            claims_equality=False,
        ),
        _elsewhere(
            batches,
            SINGLE_TOKENS,
            "sort_by_length",
            "Batches of prompts of similar length",
            ("in the order of the data", {}),
            ("sorted by length", {"sort_by_length": True}),
            padding_facts(evaluator, {}, {"sort_by_length": True}),
        ),
        _elsewhere(
            tokens,
            SHORT_ANSWERS,
            "static_cache",
            "A key-value cache of fixed size",
            ("it grows by a token at a time", {}),
            ('cache_implementation="static"', {"static_cache": True}),
        ),
    ]


def _elsewhere(
    evaluator: Evaluator,
    start: Changes,
    key: str,
    title: str,
    before: tuple[str, Changes],
    after: tuple[str, Changes],
    facts: Facts = lambda lab: {},
    **more: Any,
) -> Optimization:
    """On top of other settings than the base's."""
    about: Changes = {"answer_tokens": start["max_new_tokens"], **ELSEWHERE}
    return compare(
        evaluator,
        key,
        title,
        *((text, {**start, **changes}) for text, changes in (before, after)),
        facts=lambda lab: {**about, **facts(lab)},
        **more,
    )


def with_work_for_loaders(evaluator: Evaluator) -> Evaluator:
    """With batches enough for each loader process to load some while others are answered."""

    def count(lab: Lab) -> int:
        least = BATCHES_PER_WORKER * workers_here() * lab.size.batch_size
        return max(least, evaluator.count(lab))

    return replace(evaluator, count=count)
