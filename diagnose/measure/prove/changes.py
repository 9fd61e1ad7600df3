"""Which changes of a script can be tried by name? Each is made before the script's first line.

A change waits for what it changes (an optimizer, a loader, a model) and notes what it met, so that
one that found nothing is not mistaken for one that does not help.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
import torch.utils.data.dataloader as loading

from diagnose.measure.script.patches import Patches
from diagnose.measure.script.watch.seen import Instruments

MOST_WORKERS = 4


class Change:
    """One named change; `met` is what it has changed so far."""

    def __init__(self, name: str, watch: Instruments) -> None:
        self.met = ""
        self._watch = watch  # opens the device only when it is asked for
        self._install: Callable[[Patches], None] = {
            "fused": self._fuse,
            "workers": self._add_workers,
            "pinned": self._pin,
            "autocast": self._lower,
            "compile": self._compile,
            "channels_last": self._reorder,
            "tf32": self._round,
            "batch": self._double,
        }[name]

    def install(self, patches: Patches) -> None:
        self._install(patches)

    def _fuse(self, patches: Patches) -> None:
        def fused(original: Any) -> Any:
            def make(optimizer: Any, *args: Any, **kwargs: Any) -> None:
                if not (kwargs.get("fused") or kwargs.get("foreach")):
                    kwargs = {**kwargs, "fused": True}
                    self.met = f"fused=True in {type(optimizer).__name__}"
                original(optimizer, *args, **kwargs)

            return make

        for kind in (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad):
            patches.put(kind, "__init__", fused)

    def _add_workers(self, patches: Patches) -> None:
        count = min(MOST_WORKERS, len(os.sched_getaffinity(0)))

        def change(arguments: dict[str, Any]) -> None:
            if not arguments.get("num_workers"):
                arguments.update(num_workers=count, persistent_workers=True)
                self.met = f"num_workers={count} in DataLoader"

        def drawing(original: Any) -> Any:
            def reset(iterator: Any, loader: Any, first_iter: bool = False) -> None:
                # Workers that stay draw a number once, a loader without workers in every epoch:
                # without this the random numbers of the second epoch would be others.
                if not first_iter:
                    torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
                original(iterator, loader, first_iter)

            return reset

        self._change_loaders(patches, change)
        patches.put(loading._MultiProcessingDataLoaderIter, "_reset", drawing)

    def _pin(self, patches: Patches) -> None:
        def change(arguments: dict[str, Any]) -> None:
            if not arguments.get("pin_memory") and not self._watch.device.is_cpu:
                arguments["pin_memory"] = True
                self.met = "pin_memory=True in DataLoader"

        self._change_loaders(patches, change)

    def _double(self, patches: Patches) -> None:
        def change(arguments: dict[str, Any]) -> None:
            size = arguments.get("batch_size", 1)
            if size and not arguments.get("batch_sampler"):
                arguments["batch_size"] = 2 * size
                self.met = f"batch_size={2 * size} in DataLoader"

        self._change_loaders(patches, change)

    def _change_loaders(self, patches: Patches, change: Callable[[dict[str, Any]], None]) -> None:
        # By name or by position, a script may give any of these.
        names = ("dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "num_workers")

        def changed(original: Any) -> Any:
            def make(loader: Any, *args: Any, **kwargs: Any) -> None:
                given = dict(zip(names, args, strict=False))
                arguments = {**given, **kwargs}
                if len(args) <= len(names):
                    change(arguments)
                    original(loader, **arguments)
                else:
                    original(loader, *args, **kwargs)

            return make

        patches.put(torch.utils.data.DataLoader, "__init__", changed)

    def _around_models(self, patches: Patches, call: Callable[..., Any]) -> None:
        """`call(original, module, args, kwargs)` stands in for every outermost call."""
        inside = False

        def changed(original: Any) -> Any:
            def outermost(module: Any, *args: Any, **kwargs: Any) -> Any:
                nonlocal inside
                if inside:
                    return original(module, *args, **kwargs)
                inside = True
                try:
                    return call(original, module, args, kwargs)
                finally:
                    inside = False

            return outermost

        patches.put(torch.nn.Module, "__call__", changed)

    def _lower(self, patches: Patches) -> None:
        def call(original: Any, module: Any, args: Any, kwargs: Any) -> Any:
            self.met = "the model runs under autocast to bfloat16"
            with torch.autocast(self._watch.device.kind, dtype=torch.bfloat16):
                return original(module, *args, **kwargs)

        self._around_models(patches, call)

    def _compile(self, patches: Patches) -> None:
        until_met = patches.part()

        def call(original: Any, module: Any, args: Any, kwargs: Any) -> Any:
            until_met.undo()  # the compiler must not look through it
            self.met = f"{type(module).__name__}.compile()"
            module.compile()
            return module(*args, **kwargs)

        self._around_models(until_met, call)

    def _reorder(self, patches: Patches) -> None:
        seen: set[int] = set()

        def turn(value: Any) -> Any:
            is_image = isinstance(value, torch.Tensor) and value.dim() == 4
            return value.to(memory_format=torch.channels_last) if is_image else value

        def call(original: Any, module: Any, args: Any, kwargs: Any) -> Any:
            if id(module) not in seen:
                seen.add(id(module))
                if any(each.dim() == 4 for each in module.parameters()):
                    self.met = f"{type(module).__name__} in channels_last"
                    module.to(memory_format=torch.channels_last)
            return original(
                module, *map(turn, args), **{name: turn(each) for name, each in kwargs.items()}
            )

        self._around_models(patches, call)

    def _round(self, patches: Patches) -> None:
        if self._watch.device.kind == "cuda":
            self.met = "float32 matrix products in TF32"
            torch.set_float32_matmul_precision("high")
