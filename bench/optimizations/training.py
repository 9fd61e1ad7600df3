"""Which changes of the training loop are worth a try? Logging, compiling, optimiser, precision."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn

from bench.dgca.loss import compute_loss
from bench.dgca.model import OPTIMISED
from bench.optimizations.dgca_lab import LEARNING_RATE, build_model, real_batch
from bench.optimizations.dgca_model import fusion_inputs
from diagnose.workload import Fact, Lab, OpenTrial, Optimization, Side, Size, Trial

# The loop's own cost does not depend on the model, and shows best on a small one.
SMALL_MODEL = {"layers": 2, "hidden": 64, "heads": 2, "ffn": 256}
SMALL_BATCH = 4
LOGGED_STEPS = 8


def small(lab: Lab) -> Lab:
    shape = {**lab.size.shape, **SMALL_MODEL}
    batch_size = min(SMALL_BATCH, lab.size.batch_size)
    return replace(lab, size=Size(batch_size, lab.size.sequence_length, shape))


class Loop:
    """A training loop on one resident real batch."""

    def __init__(self, lab: Lab, *, dtype: torch.dtype | None = None) -> None:
        self.model = build_model(lab, OPTIMISED).eval()  # without dropout: sides must agree
        self._batch = real_batch(lab)
        self._optimizer = torch.optim.AdamW(self.model.parameters(), lr=LEARNING_RATE)
        self._device, self._dtype = lab.device.type, dtype

    def step(self) -> list[Tensor]:
        enabled = self._dtype is not None
        with torch.autocast(self._device, dtype=self._dtype, enabled=enabled):
            terms = compute_loss(self.model(self._batch), self._batch, self.model.config)
        torch.autograd.backward(terms.total)
        self._optimizer.step()
        self._optimizer.zero_grad()
        return [each.detach() for each in terms if isinstance(each, Tensor)]


# --- 6: reading the loss ---


def _read_every_step(loop: Loop) -> list[float]:
    seen = []
    for _ in range(LOGGED_STEPS):
        seen += [each.item() for each in loop.step()]
    return seen


def _read_at_the_end(loop: Loop) -> list[float]:
    kept: list[Tensor] = []
    for _ in range(LOGGED_STEPS):
        kept += loop.step()
    seen: list[float] = torch.stack(kept).tolist()
    return seen


def _logging_side(text: str, run: Callable[[Loop], list[float]]) -> Side:
    def outcome(lab: Lab) -> dict[str, Tensor]:
        return {"losses": torch.tensor(run(Loop(small(lab))))}

    @contextmanager
    def trial(lab: Lab) -> Iterator[Trial]:
        loop = Loop(small(lab))
        yield Trial(lambda: run(loop), SMALL_BATCH * LOGGED_STEPS)

    return Side(text, outcome, {f"{LOGGED_STEPS} training steps": trial})


LOGGING_SYNC = Optimization(
    key="logging_sync",
    title="Read the losses once, not every step",
    before=_logging_side("item() of every loss term, every step", _read_every_step),
    after=_logging_side("one read at the end", _read_at_the_end),
)


# --- 7: compiling ---


class Heads(nn.Module):
    """What DGCA has behind its encoder: elementwise work over the vocabulary."""

    def __init__(self, lab: Lab) -> None:
        super().__init__()
        self.model = build_model(small(lab), OPTIMISED).eval()

    def forward(self, logits: Tensor, ids: Tensor, shares: Tensor, alpha: Tensor) -> Tensor:
        fused: Tensor = self.model.forms.fuse(logits, ids, shares, alpha)
        return fused


def _compile_side(text: str, wrap: Callable[[nn.Module], Callable[..., Tensor]]) -> Side:
    def outcome(lab: Lab) -> dict[str, Tensor]:
        return {"per sample log-probabilities": wrap(Heads(lab))(*fusion_inputs(lab)).detach()}

    @contextmanager
    def trial(lab: Lab) -> Iterator[Trial]:
        heads, inputs = wrap(Heads(lab)), fusion_inputs(lab)
        yield Trial(lambda: heads(*inputs), len(inputs[0]), lambda: [inputs[0]])

    return Side(text, outcome, {"part, forward": trial})


def _compile_facts(lab: Lab) -> dict[str, Fact]:
    heads, inputs = Heads(lab), fusion_inputs(lab)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    began = time.monotonic()
    torch.compile(heads)(*inputs)
    seconds = time.monotonic() - began
    breaks = sum(torch._dynamo.utils.counters["graph_break"].values())
    return {"compile_seconds": round(seconds, 3), "graph_breaks": breaks}


def _compile_obstacle(lab: Lab) -> str:
    if lab.device.type == "cpu" and not (shutil.which("g++") or shutil.which("c++")):
        return "torch.compile needs a C++ compiler on the CPU, and there is none"
    return ""


TORCH_COMPILE = Optimization(
    key="torch_compile",
    title="Compile the fusion",
    before=_compile_side("eager", lambda heads: heads),
    after=_compile_side("torch.compile", lambda heads: torch.compile(heads)),
    tolerance=1e-4,
    facts=_compile_facts,
    obstacle=_compile_obstacle,
)


# --- 8: the optimiser ---


def _optimizer_side(text: str, *, fused: bool) -> Side:
    def make(lab: Lab) -> tuple[list[Tensor], torch.optim.Optimizer]:
        parameters = list(build_model(lab, OPTIMISED).parameters())
        torch.manual_seed(lab.seed)
        for each in parameters:
            each.grad = torch.randn_like(each)
        # Neither fused nor foreach is the plain loop over tensors.
        optimizer = torch.optim.AdamW(parameters, lr=LEARNING_RATE, fused=fused, foreach=False)
        return list(parameters), optimizer

    def outcome(lab: Lab) -> dict[str, Tensor]:
        parameters, optimizer = make(lab)
        optimizer.step()
        return {"parameters": torch.cat([each.detach().reshape(-1) for each in parameters])}

    @contextmanager
    def trial(lab: Lab) -> Iterator[Trial]:
        _, optimizer = make(lab)
        yield Trial(optimizer.step, lab.size.batch_size)

    return Side(text, outcome, {"optimiser step": trial})


FUSED_OPTIMIZER = Optimization(
    key="fused_optimizer",
    title="Fuse the optimiser",
    before=_optimizer_side("AdamW, one tensor after the other", fused=False),
    after=_optimizer_side("AdamW(fused=True)", fused=True),
    tolerance=1e-5,
)


# --- 10: precision ---


def _low_precision(lab: Lab) -> torch.dtype:
    return torch.float16 if lab.device.type == "cuda" else torch.bfloat16


def _precision_side(text: str, *, low: bool) -> Side:
    def loop(lab: Lab) -> Loop:
        return Loop(small(lab), dtype=_low_precision(lab) if low else None)

    @contextmanager
    def trial(lab: Lab) -> Iterator[Trial]:
        yield Trial(loop(lab).step, SMALL_BATCH)

    def outcome(lab: Lab) -> dict[str, Tensor]:
        return {"losses": torch.stack([each.float() for each in loop(lab).step()])}

    trials: dict[str, OpenTrial] = {"training step": trial}
    return Side(text, outcome, trials)


def _precision_facts(lab: Lab) -> dict[str, Fact]:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
        """Collects the operators that take float32 although autocast is on."""

        def __init__(self) -> None:
            super().__init__()  # type: ignore[no-untyped-call]
            self.full: dict[str, int] = {}

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            tensors = [each for each in args if isinstance(each, Tensor)]
            if any(each.dtype is torch.float32 for each in tensors) and "view" not in str(func):
                name = str(func).split(".")[1]
                self.full[name] = self.full.get(name, 0) + 1
            return func(*args, **(kwargs or {}))

    model, batch = build_model(small(lab), OPTIMISED).eval(), real_batch(small(lab))
    with torch.no_grad(), Watch() as watch, torch.autocast(lab.device.type, _low_precision(lab)):
        model(batch)
    often = sorted(watch.full, key=lambda name: -watch.full[name])[:8]
    return {"fp32_operators": ", ".join(f"{name} ({watch.full[name]})" for name in often)}


MIXED_PRECISION = Optimization(
    key="mixed_precision",
    title="Mixed precision",
    before=_precision_side("float32", low=False),
    after=_precision_side("autocast", low=True),
    claims_equality=False,
    facts=_precision_facts,
)
