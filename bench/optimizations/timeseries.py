"""What can be tried on the recurrent model? The settings of a published guide, one by one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from bench.optimizations.lab import Changes, Outcome, compiler_obstacle
from bench.optimizations.timeseries_lab import (
    ALONE,
    BASE,
    EPOCH,
    amp_obstacle,
    batch_facts,
    compile_facts,
    curves,
    gradient_outcome,
    loader_facts,
    model_facts,
    open_epochs,
    open_settings,
    prediction_outcome,
    resident_step,
    settings_of,
    step_outcome,
    tf32_obstacle,
)
from diagnose.workload import Lab, Ladder, Optimization, Side, Treatment

# Single precision: sums in another order differ in the last digits.
ROUNDING = 1e-5
# Compiled and fused forms reorder whole products.
REORDERED = 1e-4

FOUR_WORKERS: Changes = {"workers": 4}
MORE_WORKERS: Changes = {"workers": 8, "prefetch": 4}
LARGE: Changes = {"batch_size": 512, **ALONE}
IN_FOUR: Changes = {"batch_size": 128, "accumulate": 4, **ALONE}
PYTHON_LOOP: Changes = {"fused_lstm": False, **ALONE}

Way = tuple[str, Changes]  # what a side is called, and what it changes of the base


def _side(way: Way, *, proves: bool) -> Side:
    """Proven by gradients where nothing may change, else shown by predictions."""
    text, changes = way
    outcome = gradient_outcome(changes) if proves else prediction_outcome(changes)
    return Side(text, outcome, {EPOCH: open_settings(changes)})


def _equal(
    key: str, title: str, before: Way, after: Way, tolerance: float = ROUNDING, **more: Any
) -> Optimization:
    sides = _side(before, proves=True), _side(after, proves=True)
    return Optimization(key, title, *sides, tolerance=tolerance, **more)


def _different(key: str, title: str, before: Way, after: Way, **more: Any) -> Optimization:
    sides = _side(before, proves=False), _side(after, proves=False)
    return Optimization(key, title, *sides, claims_equality=False, **more)


def _learning(key: str, title: str, before: Way, after: Way, **more: Any) -> Optimization:
    """Whether it learns as well is shown by losses at equal samples."""
    return _different(key, title, before, after, curves=curves(before, after), **more)


def _batch(size: int) -> Optimization:
    ways: tuple[Way, Way] = ("batch 128", {}), (f"batch {size}", {"batch_size": size})
    return _learning(f"batch_{size}", f"Batches of {size}", *ways, facts=batch_facts(size))


def _other_model(key: str, title: str, before: str, after: str, changes: Changes) -> Optimization:
    """Never a speed-up: it is another model."""
    ways: tuple[Way, Way] = (before, ALONE), (after, {**changes, **ALONE})
    return _different(key, title, *ways, facts=model_facts(changes))


def _compile(key: str, mode: str) -> Optimization:
    changes: Changes = {"compile": mode}
    return _equal(
        key,
        f"torch.compile, mode {mode}",
        ("eager", {}),
        (f"torch.compile(mode='{mode}')", changes),
        REORDERED,
        facts=compile_facts(changes),
        obstacle=compiler_obstacle,
    )


def _kept_on_device(key: str, title: str, scope: str) -> Optimization:
    def make(text: str, changes: Changes) -> Side:
        def outcome(lab: Lab) -> Mapping[str, Tensor]:
            with open_epochs(settings_of(lab, changes), lab) as epoch:
                if scope == "evaluation":
                    return {"per sample predictions": epoch.evaluate()}
                return {"attention by day": epoch.weigh_days()}

        return Side(text, outcome, {scope: open_settings(changes, scope)})

    return Optimization(
        key=key,
        title=title,
        before=make("each batch is moved to the host", ALONE),
        after=make("moved once, at the end", {"evaluate_on_device": True, **ALONE}),
        tolerance=ROUNDING,
    )


def _one_step(text: str, changes: Changes) -> Side:
    """Gradients of one optimiser step, whatever it is made of."""
    return Side(text, gradient_outcome(changes, 1), {EPOCH: open_settings(changes)})


def _launched(text: str, *, graphed: bool) -> Side:
    outcome: Outcome = step_outcome(ALONE, graphed=graphed)
    return Side(text, outcome, {"training step": resident_step(ALONE, graphed=graphed)})


# As the guide lists them, each followed by what it left open.
OPTIMIZATIONS = (
    _batch(192),
    _batch(256),
    _batch(512),
    _learning(
        "tf32",
        "TF32 in matrix products and in cuDNN",
        ("float32", {}),
        ("TF32", {"tf32": True}),
        obstacle=tf32_obstacle,
    ),
    _learning(
        "mixed_precision",
        "Mixed precision",
        ("float32", {}),
        ("autocast", {"amp": True}),
        obstacle=amp_obstacle,
    ),
    _equal(
        "workers_8",
        "8 workers, 4 batches ahead",
        ("4 workers, 2 batches ahead", FOUR_WORKERS),
        ("8 workers, 4 batches ahead", MORE_WORKERS),
        facts=loader_facts(4, 8),
    ),
    _equal(
        "no_workers",
        "Load without workers",
        ("4 workers", FOUR_WORKERS),
        ("in the training process", ALONE),
    ),
    *(
        _other_model(
            f"hidden_{size}",
            f"Hidden size {size}",
            "hidden as it was (64)",
            f"hidden {size}",
            {"hidden": size},
        )
        for size in (128, 256, 512)
    ),
    _compile("compile_default", "default"),
    _compile("compile_max_autotune", "max-autotune"),
    _equal(
        "set_to_none",
        "Drop gradients instead of zeroing them (the default since PyTorch 2.0)",
        ("zero_grad(set_to_none=False)", {}),
        ("zero_grad(set_to_none=True)", {"set_to_none": True}),
    ),
    _kept_on_device("evaluate_on_device", "Keep predictions on the device", "evaluation"),
    _kept_on_device("importance_on_device", "Keep attention on the device", "importance"),
    # Against the large batch, because that is what it stands in for where memory is short.
    Optimization(
        key="accumulate_4",
        title="Accumulate 4 batches of 128 instead of one of 512",
        before=_one_step("one batch of 512", LARGE),
        after=_one_step("4 batches of 128", IN_FOUR),
        tolerance=ROUNDING,
        facts=lambda lab: {"effective_batch_size": 4 * 128},
    ),
    _other_model(
        "sequence_60", "Sequences of 60 days", "days as they were (30)", "60 days", {"sequence": 60}
    ),
    _other_model(
        "sequence_90", "Sequences of 90 days", "days as they were (30)", "90 days", {"sequence": 90}
    ),
    _equal(
        "fused_lstm",
        "One fused LSTM instead of a Python loop over its cells",
        ("a loop over layers and days", PYTHON_LOOP),
        ("nn.LSTM", ALONE),
        REORDERED,
    ),
    Optimization(
        key="cuda_graphs",
        title="Launch the step as one CUDA graph",
        before=_launched("one launch per kernel", graphed=False),
        after=_launched("one launch for all", graphed=True),
        tolerance=REORDERED,
        obstacle=lambda lab: "" if lab.device.type == "cuda" else "CUDA graphs exist on CUDA only",
    ),
    # The ladder puts together what gains here; this is there also where nothing is certain to.
    _learning(
        "all_together",
        "The guide's settings together, without the compiler",
        ("as it was", {}),
        (
            "batch 256, 8 workers, TF32 on GPUs that have it, gradients dropped, evaluation on the "
            "device",
            {
                **MORE_WORKERS,
                "batch_size": 256,
                "tf32": True,
                "set_to_none": True,
                "evaluate_on_device": True,
            },
        ),
    ),
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
