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
BOTH: Inside = "forward and backward"
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
    # Loader processes of each rank; None: the batches are already on the device.
    workers: int | None = None


@dataclass(frozen=True)
class After:
    """What is tried instead."""

    key: str
    title: str
    way: Way
    form: Literal["after", "as published"] = "after"
    proves: Proof = "gradients"
    differs: str = ""  # why the numbers are meant to change, or cannot stay the same


@dataclass(frozen=True)
class Experiment:
    """One way, and those that are timed in the same blocks with it."""

    before: Way
    afters: tuple[After, ...]


def _against(before: Way, *afters: After) -> Experiment:
    return Experiment(before, afters)


def _accumulate(passes: int) -> Experiment:
    key, title = f"accumulate_{passes}", f"Exchange gradients once in {passes} passes"
    correct = Way("forward and backward inside no_sync()", passes, no_sync=BOTH)
    published = Way("only backward inside no_sync()", passes, no_sync="backward")
    return _against(
        Way(f"{passes} passes, gradients exchanged in each", passes),
        After(key, title, correct),
        After(key, title, published, form="as published"),
    )


DEFAULT = Way("DDP as torch sets it up")
LOADED = "every rank draws its own batches"
ROUNDED = "gradients are rounded on purpose"

# The field report's order, then what it left open, then the alternatives for a slow link.
EXPERIMENTS: tuple[Experiment, ...] = (
    _accumulate(2),
    _accumulate(4),
    _against(
        Way("1 pass over the whole batch"),
        After(
            "accumulate_4x32",
            "4 passes over quarters of the batch",
            Way("4 passes over quarters, exchanged once", passes=4, split=4, no_sync=BOTH),
            differs="a mean of means weighs samples otherwise, and random draws differ",
        ),
    ),
    _against(
        # Any cap that is given also drops torch's small first bucket, so that 25 is given too.
        Way("bucket_cap_mb=25", bucket_cap_mb=25),
        After("bucket_cap_100", "Buckets of 100 MiB", Way("bucket_cap_mb=100", bucket_cap_mb=100)),
        After("bucket_cap_200", "Buckets of 200 MiB", Way("bucket_cap_mb=200", bucket_cap_mb=200)),
    ),
    _against(
        DEFAULT,
        After(
            "bucket_view",
            "Gradients live in the buckets",
            Way("gradient_as_bucket_view=True", bucket_view=True),
        ),
    ),
    _against(
        DEFAULT,
        After(
            "static_graph",
            "Promise that the graph never changes",
            Way("static_graph=True", static_graph=True),
        ),
    ),
    _against(
        Way("no_sync() without static_graph", passes=2, no_sync=BOTH),
        After(
            "static_graph_no_sync",
            "Static graph and accumulation together",
            Way("static_graph=True with no_sync()", passes=2, no_sync=BOTH, static_graph=True),
        ),
    ),
    _against(
        DEFAULT,
        After(
            "compress_fp16",
            "Exchange gradients as float16",
            Way("float16 compression hook", compress="float16"),
            differs=ROUNDED,
        ),
        After(
            "compress_bf16",
            "Exchange gradients as bfloat16",
            Way("bfloat16 compression hook", compress="bfloat16"),
            differs=ROUNDED,
        ),
    ),
    _against(
        DEFAULT,
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
    # What the field report recommends for two cards, and the numbers that it tried on one.
    _against(
        Way("2 loader processes per rank", workers=2),
        *(
            After(
                f"workers_{count}",
                f"{count} loader processes per rank",
                Way(f"{count} loader processes per rank", workers=count),
                differs=LOADED,
            )
            for count in (4, 8)
        ),
    ),
    _against(
        Way("find_unused_parameters=True", find_unused=True),
        After(
            "find_unused",
            "Do not search for unused parameters",
            Way("find_unused_parameters=False"),
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
