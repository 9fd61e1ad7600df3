"""What do changes gain that are tried elsewhere than on the base? Short answers, or fixed ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from bench.optimizations.generation_lab import (
    BATCHES_PER_WORKER,
    Changes,
    Evaluator,
    bfloat16_obstacle,
    config_facts,
    padding_facts,
    side,
    side_in_lab,
    token_facts,
    whole_batches,
    workers_here,
)
from diagnose.workload import Fact, Lab, Optimization, Side

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

    def make(text: str, batch_size: int, **more: Fact) -> Side:
        return side(evaluator, text, {**SHORT_ANSWERS, "batch_size": batch_size, **more})

    published = (make("answers cut at each prompt's own length", size, cut_at_own_length=True),)
    return Optimization(
        key=f"batch_{size}",
        title=f"Batches of {size} instead of single samples, answers of {SHORT} tokens",
        before=make("single samples", 1),
        after=make(f"batches of {size}", size),
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
    return Optimization(
        key=f"fixed_{limit}",
        title=f"Exactly {limit} new tokens instead of 32",
        before=side(evaluator, "exactly 32 tokens", FIXED),
        after=side(evaluator, f"exactly {limit} tokens", after),
        claims_equality=False,
        facts=lambda lab: {**tokens(lab), **ELSEWHERE},
    )


def on_short_answers(evaluator: Evaluator) -> list[Optimization]:
    """What happens once per batch, prompt or token."""
    tokens = replace(evaluator, count=whole_batches(BATCHES_OF_SHORT_ANSWERS))
    batches = replace(evaluator, count=whole_batches(BATCHES_OF_SINGLE_TOKENS))

    def make(
        key: str,
        title: str,
        before: Side,
        after: Side,
        answer_tokens: int,
        facts: Callable[[Lab], Mapping[str, Fact]] = lambda lab: {},
        obstacle: Callable[[Lab], str] = lambda lab: "",
        claims_equality: bool = True,
    ) -> Optimization:
        return Optimization(
            key,
            title,
            before,
            after,
            facts=lambda lab: {"answer_tokens": answer_tokens, **ELSEWHERE, **facts(lab)},
            obstacle=obstacle,
            claims_equality=claims_equality,
        )

    def per_batch(text: str, **changes: Fact) -> Side:
        return side(batches, text, {**SINGLE_TOKENS, **changes})

    def per_token(text: str, **changes: Fact) -> Side:
        return side(tokens, text, {**SHORT_ANSWERS, **changes})

    # Without a cache each token costs all tokens before it, so that it takes some to tell.
    four = 4
    return [
        _prefetch(evaluator),
        make(
            "config_once",
            "Build GenerationConfig once",
            per_batch("for each batch"),
            per_batch("before the loop", config_per_batch=False),
            1,
            config_facts,
        ),
        make(
            "log_once",
            "Log the first batch only",
            per_batch("every batch is logged"),
            per_batch("the first batch is logged", log_every_batch=False),
            1,
            lambda lab: {"batches": batches.batches(lab)},
        ),
        make(
            "score_at_once",
            "Score all answers at once",
            per_batch("sample by sample, between batches"),
            per_batch("all after the last batch", score_per_sample=False),
            1,
        ),
        # The base has the cache already: this shows what it saves.
        make(
            "kv_cache",
            "Keep keys and values of earlier tokens",
            per_token("use_cache=False", max_new_tokens=four, use_cache=False),
            per_token("use_cache=True", max_new_tokens=four),
            four,
        ),
        make(
            "bfloat16",
            "Weights and activations in bfloat16",
            per_token("float32"),
            per_token("bfloat16", dtype="bfloat16"),
            SHORT,
            obstacle=bfloat16_obstacle,
            claims_equality=False,
        ),
        make(
            "sort_by_length",
            "Batches of prompts of similar length",
            per_batch("in the order of the data"),
            per_batch("sorted by length", sort_by_length=True),
            1,
            padding_facts(evaluator, {}, {"sort_by_length": True}),
        ),
        make(
            "static_cache",
            "A key-value cache of fixed size",
            per_token("it grows by a token at a time"),
            per_token('cache_implementation="static"', static_cache=True),
            SHORT,
        ),
    ]


def _prefetch(evaluator: Evaluator) -> Optimization:
    """With so many batches that one side holds them all no sooner than the other."""
    enough = with_work_for_loaders(evaluator)

    def ahead(count: int) -> Side:
        return side_in_lab(
            enough,
            f"prefetch_factor={count}",
            lambda lab: {**SINGLE_TOKENS, "workers": workers_here(), "prefetch": count},
        )

    return Optimization(
        "prefetch_2",
        "2 batches ahead per loader process (the default)",
        ahead(1),
        ahead(2),
        facts=lambda lab: {
            "answer_tokens": 1,
            "after_workers": workers_here(),
            "batches": enough.batches(lab),
            **ELSEWHERE,
        },
    )


def with_work_for_loaders(evaluator: Evaluator) -> Evaluator:
    """With batches enough for each loader process to load some while others are answered."""

    def count(lab: Lab) -> int:
        least = BATCHES_PER_WORKER * workers_here() * lab.size.batch_size
        return max(least, evaluator.count(lab))

    return replace(evaluator, count=count)
