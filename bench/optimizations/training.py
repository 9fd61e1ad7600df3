"""Which changes of the training loop are worth a try? Logging, compiling, precision, memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn

from bench.dgca.loss import compute_loss
from bench.dgca.masking import mask_on_device
from bench.dgca.model import OPTIMISED
from bench.optimizations.dgca_lab import (
    LEARNING_RATE,
    build_model,
    model_outcome,
    real_batch,
    training_trial,
)
from bench.optimizations.dgca_model import fusion_inputs
from bench.optimizations.lab import compiler_obstacle, opened
from diagnose.measure.machine.allocator import keep_freed_memory, return_large_blocks
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

    def trial(lab: Lab) -> Trial:
        loop = Loop(small(lab))
        return Trial(lambda: run(loop), SMALL_BATCH * LOGGED_STEPS)

    return Side(text, outcome, {f"{LOGGED_STEPS} training steps": opened(trial)})


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

    def trial(lab: Lab) -> Trial:
        heads, inputs = wrap(Heads(lab)), fusion_inputs(lab)
        return Trial(lambda: heads(*inputs), len(inputs[0]), lambda: [inputs[0]])

    return Side(text, outcome, {"part, forward": opened(trial)})


def _compile_facts(lab: Lab) -> dict[str, Fact]:
    heads, inputs = Heads(lab), fusion_inputs(lab)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    began = time.monotonic()
    torch.compile(heads)(*inputs)
    seconds = time.monotonic() - began
    breaks = sum(torch._dynamo.utils.counters["graph_break"].values())
    return {"compile_seconds": round(seconds, 3), "graph_breaks": breaks}


TORCH_COMPILE = Optimization(
    key="torch_compile",
    title="Compile the fusion",
    before=_compile_side("eager", lambda heads: heads),
    after=_compile_side("torch.compile", lambda heads: torch.compile(heads)),
    tolerance=1e-4,
    facts=_compile_facts,
    obstacle=compiler_obstacle,
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

    def trial(lab: Lab) -> Trial:
        _, optimizer = make(lab)
        return Trial(optimizer.step, lab.size.batch_size)

    return Side(text, outcome, {"optimiser step": opened(trial)})


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

    def trial(lab: Lab) -> Trial:
        return Trial(loop(lab).step, SMALL_BATCH)

    def outcome(lab: Lab) -> dict[str, Tensor]:
        return {"losses": torch.stack([each.float() for each in loop(lab).step()])}

    trials: dict[str, OpenTrial] = {"training step": opened(trial)}
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


# --- freed memory ---


def _memory_side(text: str, arrange: Callable[[], bool]) -> Side:
    @contextmanager
    def trial(lab: Lab) -> Iterator[Trial]:
        with training_trial(OPTIMISED, mask_on_device)(lab) as made:
            # Afterwards as every other measurement has it.
            yield replace(made, before_slot=arrange, after_slot=keep_freed_memory)

    return Side(text, model_outcome(OPTIMISED), {"training step": trial})


def _memory_obstacle(lab: Lab) -> str:
    if lab.device.type != "cpu":
        return f"the allocator of {lab.device.type} keeps freed memory by itself"
    return "" if keep_freed_memory() else "this C library cannot be told to keep freed memory"


KEEP_MEMORY = Optimization(
    key="keep_memory",
    title="Keep freed memory",
    before=_memory_side("blocks above 32 MiB go back to the system", return_large_blocks),
    after=_memory_side("freed memory is kept for the next tensor", keep_freed_memory),
    obstacle=_memory_obstacle,
)
