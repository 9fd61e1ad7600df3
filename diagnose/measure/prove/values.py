"""What does a step compute? Its loss, gradients and parameters, as a few numbers per step.

The loss is whatever `backward` was called on. A script that trains nothing is known by what its
model gives back. Two norms and a sample of the parameters stand for all of them.
"""

from __future__ import annotations

import hashlib
import math
import random
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._pytree import tree_leaves

from diagnose.measure.script.patches import Patches
from diagnose.measure.script.watch.boundary import OPTIMIZER_STEP, Boundary, Forwards
from diagnose.records.prove import GRADIENT, LOSS, OUTPUT, PARAMETERS

SEED = 0
MOST_SAMPLED = 2**18  # elements of one tensor


def seed_everything() -> None:
    """Every run begins with the same random numbers, unless the script chooses its own."""
    random.seed(SEED)
    torch.manual_seed(SEED)
    numpy = sys.modules.get("numpy")  # torch loads it where it is installed
    if numpy is not None:
        numpy.random.seed(SEED)


class Values:
    """Reads the values of every step; `nudge` moves the first weights by this share of each."""

    def __init__(self, boundary: Boundary, forwards: Forwards, nudge: float) -> None:
        self.values: dict[str, list[float | None]] = defaultdict(list)
        self.dtypes: set[torch.dtype] = set()
        self.samples: list[int] = []
        self._boundary, self._forwards, self._nudge = boundary, forwards, nudge
        self._losses: list[torch.Tensor] = []
        self._unscaled: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._squares = 0.0
        self._batch = 0
        self._output: Any = None
        self._known: dict[int, torch.Tensor] = {}  # parameters that were seen

    def install(self, patches: Patches) -> None:
        self._forwards.install(patches)
        self._forwards.listen(patches, before=self._before_call)
        handle: Any = register_optimizer_step_pre_hook(self._before_update)
        patches.on_undo(handle.remove)
        self._calls = patches.part()
        handle = register_module_forward_hook(self._after_call)
        self._calls.on_undo(handle.remove)
        patches.put(torch.autograd, "backward", self._noting_losses)
        patches.put(torch.amp.GradScaler, "scale", self._noting_scale)
        patches.put(torch.autocast, "__enter__", self._noting_type)

    def begin(self) -> None:
        """What was read of earlier steps does not count."""
        self.values.clear()
        self.samples.clear()

    def end_step(self) -> None:
        trains = self._boundary.kind == OPTIMIZER_STEP
        found: dict[str, float | None] = {}
        if trains and self._losses:
            found[LOSS] = math.fsum(float(each.detach().double().sum()) for each in self._losses)
        if trains:
            found[GRADIENT] = math.sqrt(self._squares)
            found[PARAMETERS] = digest(_parameters(self._boundary.optimizers))
        else:
            found[OUTPUT] = digest(_tensors(self._output))
        for name, value in found.items():
            self.values[name].append(value if value is not None and math.isfinite(value) else None)
        self.samples.append(self._batch)
        self._losses.clear()
        self._unscaled.clear()
        self._squares, self._batch, self._output = 0.0, 0, None

    @property
    def shapes(self) -> str:
        found = sorted(str(tuple(each.shape)) for each in _parameters(self._boundary.optimizers))
        return hashlib.sha256(" ".join(found).encode()).hexdigest()[:16]

    @property
    def coarsest(self) -> torch.dtype:
        """The type with the fewest digits that took part."""
        kinds = {each.dtype for each in self._known.values() if each.is_floating_point()}
        return max(kinds | self.dtypes or {torch.float32}, key=lambda kind: torch.finfo(kind).eps)

    def _before_call(
        self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        batches = [each for each in _tensors((args, kwargs)) if each.dim()]
        self._batch += batches[0].shape[0] if batches else 0
        self._meet(module.parameters())

    def _after_call(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        self._output = output

    def _before_update(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        self._calls.undo()  # what the model gives back is not needed
        self._meet(_parameters([optimizer]))
        for each in _parameters([optimizer]):
            if each.grad is not None:
                gradient = each.grad.detach()
                flat = gradient.coalesce().values() if gradient.is_sparse else gradient
                self._squares += float(torch.linalg.vector_norm(flat, dtype=_wide(flat))) ** 2

    def _meet(self, parameters: Iterable[torch.Tensor]) -> None:
        for each in parameters:
            if id(each) not in self._known:
                self._known[id(each)] = each
                if self._nudge and each.is_floating_point():
                    dice = torch.Generator().manual_seed(len(self._known))
                    signs = torch.randint(0, 2, each.shape, generator=dice) * 2 - 1
                    with torch.no_grad():
                        each.mul_((1 + signs.double() * self._nudge).to(each.device, each.dtype))

    def _noting_losses(self, original: Any) -> Any:
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            for each in _tensors(tensors):
                _, loss = self._unscaled.get(id(each), (each, each))
                self._losses.append(loss.detach())
            return original(tensors, *args, **kwargs)

        return backward

    def _noting_scale(self, original: Any) -> Any:
        def scale(scaler: Any, outputs: Any) -> Any:
            scaled = original(scaler, outputs)
            for loss, made in zip(_tensors(outputs), _tensors(scaled), strict=True):
                self._unscaled[id(made)] = made, loss
            return scaled

        return scale

    def _noting_type(self, original: Any) -> Any:
        def enter(context: Any) -> Any:
            if context._enabled:
                self.dtypes.add(context.fast_dtype)
            return original(context)

        return enter


def digest(tensors: Iterable[torch.Tensor]) -> float:
    """One number that hardly two different sets of tensors share, whatever their order."""
    total = 0.0
    for each in tensors:
        flat = _flat(each.detach())
        if not flat.numel():
            continue
        if flat.is_complex():
            flat = torch.view_as_real(flat).flatten()
        sample = flat[:: math.ceil(flat.numel() / MOST_SAMPLED)].double()
        places = torch.arange(sample.numel(), dtype=torch.float64, device=sample.device)
        # Neither the sum nor the order alone tells tensors apart.
        total += float((sample * (1.5 + torch.cos(places))).sum())
    return total


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """All of its values, whatever its layout."""
    if tensor.is_nested:
        return torch.cat([each.flatten() for each in tensor.unbind()])
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    return tensor.flatten()


def _wide(tensor: torch.Tensor) -> torch.dtype:
    return torch.complex128 if tensor.is_complex() else torch.float64


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [each for each in tree_leaves(tree) if isinstance(each, torch.Tensor)]


def _parameters(optimizers: Iterable[torch.optim.Optimizer]) -> Iterator[torch.Tensor]:
    seen: set[int] = set()
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for each in group["params"]:
                if id(each) not in seen:
                    seen.add(id(each))
                    yield each
