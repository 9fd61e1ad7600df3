"""What can be tried on the recurrent model? The settings of a published guide, one by one."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from bench.optimizations.timeseries_lab import (
    ALONE,
    BASE,
    EPOCH,
    Changes,
    amp_obstacle,
    batch_facts,
    compile_facts,
    compile_obstacle,
    curves,
    gradient_outcome,
    loader_facts,
    model_facts,
    open_settings,
    open_short_epoch,
    resident_step,
    settings_of,
    side,
    step_outcome,
    tf32_obstacle,
)
from diagnose.workload import Lab, Ladder, Optimization, Side, Treatment

# Single precision: sums in another order differ in the last digits.
ROUNDING = 1e-5
# Compiled and fused forms reorder whole products.
REORDERED = 1e-4


def _batch(size: int) -> Optimization:
    patch: Changes = {"batch_size": size}
    return Optimization(
        key=f"batch_{size}",
        title=f"Batches of {size}",
        before=side("batch 128", {}, proves=False),
        after=side(f"batch {size}", patch, proves=False),
        claims_equality=False,
        facts=batch_facts(size),
        curves=curves(("batch 128", {}), (f"batch {size}", patch)),
    )


def _other_model(key: str, title: str, before: str, after: str, patch: Changes) -> Optimization:
    """Never a speed-up: it is another model."""
    return Optimization(
        key=key,
        title=title,
        before=side(before, ALONE, proves=False),
        after=side(after, {**patch, **ALONE}, proves=False),
        claims_equality=False,
        facts=model_facts(patch),
    )


def _compile(key: str, mode: str) -> Optimization:
    patch: Changes = {"compile": mode}
    return Optimization(
        key=key,
        title=f"torch.compile, mode {mode}",
        before=side("eager", {}, proves=True),
        after=side(f"torch.compile(mode='{mode}')", patch, proves=True),
        tolerance=REORDERED,
        facts=compile_facts(patch),
        obstacle=compile_obstacle,
    )


def _kept_on_device(key: str, title: str, scope: str) -> Optimization:
    def make(text: str, patch: Changes) -> Side:
        def outcome(lab: Lab) -> Mapping[str, Tensor]:
            with open_short_epoch(settings_of(lab, patch), lab) as epoch:
                if scope == "evaluation":
                    return {"per sample predictions": epoch.evaluate()}
                return {"attention by day": epoch.weigh_days()}

        return Side(text, outcome, {scope: open_settings(patch, scope)})

    return Optimization(
        key=key,
        title=title,
        before=make("each batch is moved to the host", ALONE),
        after=make("moved once, at the end", {"evaluate_on_device": True, **ALONE}),
        tolerance=ROUNDING,
    )


BATCH_192, BATCH_256, BATCH_512 = _batch(192), _batch(256), _batch(512)

TF32 = Optimization(
    key="tf32",
    title="TF32 in matrix products and in cuDNN",
    before=side("float32", {}, proves=False),
    after=side("TF32", {"tf32": True}, proves=False),
    claims_equality=False,
    curves=curves(("float32", {}), ("TF32", {"tf32": True})),
    obstacle=tf32_obstacle,
)

MIXED_PRECISION = Optimization(
    key="mixed_precision",
    title="Mixed precision",
    before=side("float32", {}, proves=False),
    after=side("autocast", {"amp": True}, proves=False),
    claims_equality=False,
    curves=curves(("float32", {}), ("autocast", {"amp": True})),
    obstacle=amp_obstacle,
)

FOUR_WORKERS: Changes = {"workers": 4}
MORE_WORKERS: Changes = {"workers": 8, "prefetch": 4}
WORKERS_8 = Optimization(
    key="workers_8",
    title="8 workers, 4 batches ahead",
    before=side("4 workers, 2 batches ahead", FOUR_WORKERS, proves=True),
    after=side("8 workers, 4 batches ahead", MORE_WORKERS, proves=True),
    tolerance=ROUNDING,
    facts=loader_facts(4, 8),
)
NO_WORKERS = Optimization(
    key="no_workers",
    title="Load without workers",
    before=side("4 workers", FOUR_WORKERS, proves=True),
    after=side("in the training process", ALONE, proves=True),
    tolerance=ROUNDING,
)

SET_TO_NONE = Optimization(
    key="set_to_none",
    title="Drop gradients instead of zeroing them (the default since PyTorch 2.0)",
    before=side("zero_grad(set_to_none=False)", {}, proves=True),
    after=side("zero_grad(set_to_none=True)", {"set_to_none": True}, proves=True),
    tolerance=ROUNDING,
)

COMPILE_DEFAULT = _compile("compile_default", "default")
COMPILE_MAX_AUTOTUNE = _compile("compile_max_autotune", "max-autotune")

EVALUATE_ON_DEVICE = _kept_on_device(
    "evaluate_on_device", "Keep predictions on the device", "evaluation"
)
IMPORTANCE_ON_DEVICE = _kept_on_device(
    "importance_on_device", "Keep attention on the device", "importance"
)

# Against the large batch, because that is what it stands in for where memory is short.
LARGE: Changes = {"batch_size": 512, **ALONE}
IN_FOUR: Changes = {"batch_size": 128, "accumulate": 4, **ALONE}
ACCUMULATE_4 = Optimization(
    key="accumulate_4",
    title="Accumulate 4 batches of 128 instead of one of 512",
    before=Side("one batch of 512", gradient_outcome(LARGE, 1), {EPOCH: open_settings(LARGE)}),
    after=Side("4 batches of 128", gradient_outcome(IN_FOUR, 1), {EPOCH: open_settings(IN_FOUR)}),
    tolerance=ROUNDING,
    facts=lambda lab: {"effective_batch_size": 4 * 128},
)

PYTHON_LOOP: Changes = {"fused_lstm": False, **ALONE}
FUSED_LSTM = Optimization(
    key="fused_lstm",
    title="One fused LSTM instead of a Python loop over its cells",
    before=side("a loop over layers and days", PYTHON_LOOP, proves=True),
    after=side("nn.LSTM", ALONE, proves=True),
    tolerance=REORDERED,
)

HIDDEN_128 = _other_model(
    "hidden_128", "Hidden size 128", "hidden as it was (64)", "hidden 128", {"hidden": 128}
)
HIDDEN_256 = _other_model(
    "hidden_256", "Hidden size 256", "hidden as it was (64)", "hidden 256", {"hidden": 256}
)
SEQUENCE_60 = _other_model(
    "sequence_60", "Sequences of 60 days", "days as they were (30)", "60 days", {"sequence": 60}
)
SEQUENCE_90 = _other_model(
    "sequence_90", "Sequences of 90 days", "days as they were (30)", "90 days", {"sequence": 90}
)


def _launched(text: str, *, graphed: bool) -> Side:
    return Side(
        text,
        step_outcome(ALONE, graphed=graphed),
        {"training step": resident_step(ALONE, graphed=graphed)},
    )


CUDA_GRAPHS = Optimization(
    key="cuda_graphs",
    title="Launch the step as one CUDA graph",
    before=_launched("one launch per kernel", graphed=False),
    after=_launched("one launch for all", graphed=True),
    tolerance=REORDERED,
    obstacle=lambda lab: "" if lab.device.type == "cuda" else "CUDA graphs exist on CUDA only",
)

# As the guide lists them, each followed by what it left open.
OPTIMIZATIONS = (
    BATCH_192,
    BATCH_256,
    BATCH_512,
    TF32,
    MIXED_PRECISION,
    WORKERS_8,
    NO_WORKERS,
    HIDDEN_128,
    HIDDEN_256,
    COMPILE_DEFAULT,
    COMPILE_MAX_AUTOTUNE,
    SET_TO_NONE,
    EVALUATE_ON_DEVICE,
    IMPORTANCE_ON_DEVICE,
    ACCUMULATE_4,
    SEQUENCE_60,
    SEQUENCE_90,
    FUSED_LSTM,
    CUDA_GRAPHS,
)
TREATMENT = Treatment(
    OPTIMIZATIONS,
    # The job as it is comes first; the loop shows what the fused form saves it from.
    mapped={"fused LSTM": resident_step(ALONE), "Python loop": resident_step(PYTHON_LOOP)},
    ladder=Ladder(
        scope=EPOCH,
        base=BASE,
        # Those that start from the base and leave the model as it is.
        patches={
            "batch_192": {"batch_size": 192},
            "batch_256": {"batch_size": 256},
            "batch_512": {"batch_size": 512},
            "tf32": {"tf32": True},
            "mixed_precision": {"amp": True},
            "workers_8": MORE_WORKERS,
            "no_workers": ALONE,
            "compile_default": {"compile": "default"},
            "compile_max_autotune": {"compile": "max-autotune"},
            "set_to_none": {"set_to_none": True},
        },
        open=open_settings,
    ),
)
