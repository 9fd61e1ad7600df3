"""Which options of data parallelism are worth a try? The catalogue; plain data, without torch.

A pass is one forward and one backward over one micro-batch; an optimiser step is one or more
passes. Accumulation is tried at a fixed micro-batch: whoever also divides the batch exchanges as
much per sample as before, and measures nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

# What all passes of an optimiser step but the last do inside DDP's no_sync(). torch decides in
# the forward pass whether the following backward exchanges gradients, so "backward" is too late.
Inside = Literal["nothing", "forward and backward", "backward"]
# What must be the same: the exchanged gradients, or how far one step moves the weights.
Proof = Literal["gradients", "updates"]

# Sums in another order differ in the last digits; in units of the gradients' root mean square.
GRADIENT_TOLERANCE = 1e-3
# Adam's first step moves every weight by about the learning rate, which is the unit here; one
# that missed the other ranks' gradients differs by whole units.
UPDATE_TOLERANCE = 1e-2


@dataclass(frozen=True)
class Way:
    """One way to train on several ranks. The defaults are those of torch."""

    text: str
    passes: int = 1
    split: int = 1  # into so many micro-batches the rank's batch is divided
    no_sync: Inside = "nothing"
    # None is 25 MiB after a first bucket of 1 MiB; any number, 25 too, is that of all buckets.
    bucket_cap_mb: int | None = None
    bucket_view: bool = False
    static_graph: bool = False
    find_unused: bool = False
    compress: Literal["", "float16", "bfloat16"] = ""
    shard: Literal["", "optimizer", "model"] = ""


@dataclass(frozen=True)
class After:
    """What is tried instead."""

    key: str
    title: str
    way: Way
    form: Literal["after", "as published"] = "after"
    # False where the numbers are meant to change, or cannot stay the same; `remark` says why.
    claims_equality: bool = True
    remark: str = ""
    proves: Proof = "gradients"


@dataclass(frozen=True)
class Experiment:
    """One way, and those that are timed in the same blocks with it."""

    before: Way
    afters: tuple[After, ...]


DEFAULT = Way("DDP as torch sets it up")


def _accumulate(passes: int) -> Experiment:
    before = Way(f"{passes} passes, gradients exchanged in each", passes=passes)
    key, title = f"accumulate_{passes}", f"Exchange gradients once in {passes} passes"
    inside = replace(
        before, text="forward and backward inside no_sync()", no_sync="forward and backward"
    )
    published = replace(before, text="only backward inside no_sync()", no_sync="backward")
    return Experiment(
        before,
        (After(key, title, inside), After(key, title, published, form="as published")),
    )


def _bucket_cap(megabytes: int) -> After:
    return After(
        f"bucket_cap_{megabytes}",
        f"Buckets of {megabytes} MiB",
        Way(f"bucket_cap_mb={megabytes}", bucket_cap_mb=megabytes),
    )


def _compress(key: str, dtype: Literal["float16", "bfloat16"]) -> After:
    return After(
        key,
        f"Exchange gradients as {dtype}",
        Way(f"{dtype} compression hook", compress=dtype),
        claims_equality=False,
        remark="gradients are rounded on purpose",
    )


# The field report's order, then what it left open, then the alternatives for a slow link.
EXPERIMENTS: tuple[Experiment, ...] = (
    _accumulate(2),
    _accumulate(4),
    Experiment(
        Way("1 pass over the whole batch"),
        (
            After(
                "accumulate_4x32",
                "4 passes over quarters of the batch",
                Way(
                    "4 passes over quarters, exchanged once",
                    passes=4,
                    split=4,
                    no_sync="forward and backward",
                ),
                claims_equality=False,
                remark="a mean of means weighs samples otherwise, and random draws differ",
            ),
        ),
    ),
    Experiment(DEFAULT, (_bucket_cap(100), _bucket_cap(200))),
    Experiment(
        DEFAULT,
        (
            After(
                "bucket_view",
                "Gradients live in the buckets",
                Way("gradient_as_bucket_view=True", bucket_view=True),
            ),
        ),
    ),
    Experiment(
        DEFAULT,
        (
            After(
                "static_graph",
                "Promise that the graph never changes",
                Way("static_graph=True", static_graph=True),
            ),
        ),
    ),
    Experiment(
        Way("no_sync() without static_graph", passes=2, no_sync="forward and backward"),
        (
            After(
                "static_graph_no_sync",
                "Static graph and accumulation together",
                Way(
                    "static_graph=True with no_sync()",
                    passes=2,
                    no_sync="forward and backward",
                    static_graph=True,
                ),
            ),
        ),
    ),
    Experiment(
        DEFAULT, (_compress("compress_fp16", "float16"), _compress("compress_bf16", "bfloat16"))
    ),
    Experiment(
        DEFAULT,
        (
            After(
                "zero_optimizer",
                "Divide the optimiser's state among the ranks",
                Way("ZeroRedundancyOptimizer", shard="optimizer"),
                proves="updates",
            ),
            After(
                "fsdp2",
                "Divide weights, gradients and state among the ranks",
                Way("fully_shard (FSDP2)", shard="model"),
                proves="updates",
            ),
        ),
    ),
    Experiment(
        Way("find_unused_parameters=True", find_unused=True),
        (
            After(
                "find_unused",
                "Do not search for unused parameters",
                Way("find_unused_parameters=False"),
            ),
        ),
    ),
)

KEYS = tuple(dict.fromkeys(after.key for each in EXPERIMENTS for after in each.afters))


def select(keys: tuple[str, ...]) -> tuple[Experiment, ...]:
    """The experiments with only the changes asked for; their order stays."""
    chosen = (
        replace(each, afters=tuple(after for after in each.afters if after.key in keys))
        for each in EXPERIMENTS
    )
    return tuple(each for each in chosen if each.afters)
