"""What do half precision and the compiler bring? Tried on a whole step, at the size of the lab."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from bench.dgca.masking import (
    MaskForm,
    mask_on_device,
    mask_through_tokenizer,
    prepare_batch,
)
from bench.dgca.model import BEST, OPTIMISED, ORIGINAL, Forms
from bench.dgca.state import start_training
from bench.dgca.trainer import Objective, apply_gradients
from bench.optimizations.dgca_lab import LEARNING_RATE, build_model, gradients_of, real_batch
from bench.optimizations.lab import compiler_obstacle, opened, watch_compiling
from diagnose.measure.lines.operators import operand_tensors
from diagnose.workload import Fact, Lab, Optimization, Side, Trial

STEP = "training step"
# Losses are shown after so many steps; float16's scale has settled by then or never does.
CURVE_STEPS = 8
WARM_STEPS = 3
NAMED_OPERATORS = 6
# Slower than this a format is of no use, and its experiment would take longer than all others.
MOST_SLOWDOWN = 8
_CASTS = ("aten::_to_copy", "aten::copy_")


class TrainingStep:
    """A step of the training script on a resident real batch, in one precision or another."""

    def __init__(
        self,
        lab: Lab,
        low: torch.dtype | None = None,
        wrap: Callable[[nn.Module], Any] = lambda module: module,
        *,
        dropout: bool = True,
        forms: Forms = OPTIMISED,
        mask: MaskForm = mask_on_device,
        fused: bool = False,
    ) -> None:
        model = build_model(lab, forms).train(dropout)
        self._batch, self._mask = real_batch(lab), mask
        self._state = start_training(model, LEARNING_RATE, False, fused, lab.device)
        # float16 cannot hold small gradients; bfloat16 has the range of float32.
        self._state.scaler = torch.amp.GradScaler(lab.device.type, enabled=low is torch.float16)
        self._objective = wrap(Objective(model, model.config))
        self._autocast = torch.autocast(lab.device.type, dtype=low, enabled=low is not None)

    def __call__(self) -> Tensor:
        loss = self.forward_and_backward()
        apply_gradients(self._state, LEARNING_RATE)
        return loss

    def forward_and_backward(self) -> Tensor:
        batch = prepare_batch(self._batch, self._mask)
        with self._autocast:
            loss: Tensor = self._objective(batch)
        self._state.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    @property
    def scale(self) -> float:
        return self._state.scaler.get_scale()


# --- precision ---


def _losses(lab: Lab, low: torch.dtype | None, **form: Any) -> Tensor:
    step = TrainingStep(lab, low, dropout=False, **form)
    return torch.stack([step().float() for _ in range(CURVE_STEPS)])


def _precision_side(text: str, low: torch.dtype | None, **form: Any) -> Side:
    def trial(lab: Lab) -> Trial:
        return Trial(TrainingStep(lab, low, **form), lab.size.batch_size)

    return Side(text, lambda lab: {"losses": _losses(lab, low, **form)}, {STEP: opened(trial)})


def _precision(key: str, title: str, text: str, low: torch.dtype) -> Optimization:
    def facts(lab: Lab) -> Mapping[str, Fact]:
        step = TrainingStep(lab, low)
        for _ in range(WARM_STEPS):
            step()
        found: dict[str, Fact] = {**time_precisions(step.forward_and_backward, lab.device)}
        return found | ({"loss_scale": step.scale} if low is torch.float16 else {})

    def curves(lab: Lab) -> Mapping[str, tuple[float, ...]]:
        return {
            "float32": tuple(_losses(lab, None).tolist()),
            text: tuple(_losses(lab, low).tolist()),
        }

    return Optimization(
        key=key,
        title=title,
        before=_precision_side("float32", None),
        after=_precision_side(text, low),
        claims_equality=False,
        facts=facts,
        curves=curves,
        obstacle=lambda lab: emulation_obstacle(lab, low),
    )


_step_seconds: dict[tuple[object, ...], float] = {}


def step_seconds(lab: Lab, low: torch.dtype | None) -> float:
    """Of the first step; timed once, because it may take long."""
    key = (lab.device, lab.size.batch_size, *lab.size.shape.items(), low)
    if key not in _step_seconds:
        step = TrainingStep(lab, low)
        began = time.perf_counter()
        step()
        _step_seconds[key] = time.perf_counter() - began
    return _step_seconds[key]


def emulation_obstacle(lab: Lab, low: torch.dtype) -> str:
    """Processors without units for a format compute it number by number, for hours."""
    if lab.device.type != "cpu":
        return ""
    usual, slow = step_seconds(lab, None), step_seconds(lab, low)
    if slow < MOST_SLOWDOWN * usual:
        return ""
    name = str(low).removeprefix("torch.")
    return f"this processor emulates {name}: a step takes {slow / usual:.0f} times as long"


MIXED_PRECISION = _precision(
    "mixed_precision",
    "Mixed precision in float16, as --fp16 does it",
    "float16 autocast with GradScaler",
    torch.float16,
)
BFLOAT16 = _precision(
    "bfloat16",
    "Mixed precision in bfloat16, which needs no scaled losses",
    "bfloat16 autocast",
    torch.bfloat16,
)


# The field report compared its two forms in this precision.
ALL_TOGETHER_FP16 = Optimization(
    key="all_together_fp16",
    title="All proven changes together, both sides in float16",
    before=_precision_side(
        "as first written, float16 autocast with GradScaler",
        torch.float16,
        forms=ORIGINAL,
        mask=mask_through_tokenizer,
    ),
    after=_precision_side(
        "all proven changes, float16 autocast with GradScaler",
        torch.float16,
        forms=BEST,
        fused=True,
    ),
    claims_equality=False,
    obstacle=lambda lab: emulation_obstacle(lab, torch.float16),
)


class _Clock(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Times every operator by itself; the device is waited for on both sides of it."""

    def __init__(self, synchronize: Callable[[], object]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._synchronize = synchronize
        self.seconds: dict[tuple[str, str], float] = {}  # by kind and operator

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        kind = _precision_of(func, operand_tensors((*args, *(kwargs or {}).values())))
        self._synchronize()
        began = time.perf_counter()
        result = func(*args, **(kwargs or {}))
        self._synchronize()
        key = kind, func._schema.name.removeprefix("aten::")
        self.seconds[key] = self.seconds.get(key, 0.0) + time.perf_counter() - began
        return result


def _precision_of(operator: Any, inputs: list[Tensor]) -> str:
    """What an operator computes in; a cast computes nothing, and a view does nothing."""
    if operator._schema.name in _CASTS:
        return "cast"
    dtypes = {each.dtype for each in inputs if each.is_floating_point()}
    if operator.is_view or not dtypes:
        return "other"
    return "float32" if torch.float32 in dtypes else "low"


def time_precisions(work: Callable[[], object], device: torch.device) -> dict[str, Fact]:
    """Which share of the operators' time is spent in float32, and by which of them.

    Casts are a cost of mixed precision, not work that it left in float32: counted apart.
    """
    waits = (lambda: None) if device.type == "cpu" else torch.accelerator.synchronize
    with _Clock(waits) as clock:
        work()
    total = dict.fromkeys(("float32", "low", "cast", "other"), 0.0)
    for (kind, _), seconds in clock.seconds.items():
        total[kind] += seconds
    computed = total["float32"] + total["low"]
    everything = sum(total.values())
    full = {name: each for (kind, name), each in clock.seconds.items() if kind == "float32"}
    most = sorted(full, key=lambda name: -full[name])[:NAMED_OPERATORS]
    return {
        "fp32_time_share": total["float32"] / computed if computed else 0.0,
        "cast_time_share": total["cast"] / everything if everything else 0.0,
        "fp32_operators": ", ".join(f"{name} ({full[name] / computed:.0%})" for name in most),
    }


# --- the compiler ---


def _compiled(module: nn.Module) -> Any:
    torch.compiler.reset()
    return torch.compile(module)


def _compile_side(text: str, wrap: Callable[[nn.Module], Any]) -> Side:
    def trial(lab: Lab) -> Trial:
        return Trial(TrainingStep(lab, wrap=wrap), lab.size.batch_size)

    def outcome(lab: Lab) -> Mapping[str, Tensor]:
        model = build_model(lab, OPTIMISED).eval()
        loss = wrap(Objective(model, model.config))(real_batch(lab))
        torch.autograd.backward(loss)
        return {"loss": loss.detach().reshape(1), **gradients_of(model)}

    return Side(text, outcome, {STEP: opened(trial)})


TORCH_COMPILE = Optimization(
    key="torch_compile",
    title="Compile the whole model with its loss, forward and backward",
    before=_compile_side("eager", lambda module: module),
    after=_compile_side("torch.compile", _compiled),
    tolerance=1e-4,
    facts=lambda lab: watch_compiling(TrainingStep(lab, wrap=_compiled), "dgca"),
    obstacle=compiler_obstacle,
)
