"""What do the ranks of a script exchange, and can there be less of it?

Whatever one rank leaves out of an exchange, the others wait for. So it is counted where something
may be left out, gradients are exchanged less by all ranks in the same steps, and a job that
shards its optimizer is not changed at all.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from diagnose.measure.script.change.variant import Variant
from diagnose.measure.script.patches import Patches
from diagnose.measure.script.watch.boundary import Forwards
from diagnose.records.script import Site

ALONE, EXCHANGED_ONCE = "no exchange", "one exchange"
_SHARDING = {
    "FSDPModule": "FSDP2 (fully_shard)",
    "FullyShardedDataParallel": "FSDP",
    "ZeroRedundancyOptimizer": "ZeRO",
    "DeepSpeedEngine": "DeepSpeed",
}


def why_untouchable() -> str:
    """Why nothing may be changed in this job; empty if it may."""
    kinds = {type(each) for each in gc.get_objects()}
    names = {base.__name__ for kind in kinds for base in kind.__mro__}
    found = [title for name, title in _SHARDING.items() if name in names]
    return f"{found[0]} shards what the optimizer updates over the ranks" if found else ""


class _Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += "c10d" in func.namespace
        return func(*args, **(kwargs or {}))


def call_counting(call: Callable[..., Any], args: Any, kwargs: Any) -> tuple[Any, int]:
    """The result, and how often something was exchanged with other ranks for it."""
    with _Counting() as counting:
        return call(*args, **kwargs), counting.count


class Replicas:
    """Models of DistributedDataParallel, and how often a step exchanges their gradients."""

    def __init__(self, forwards: Forwards) -> None:
        self._forwards = forwards
        # By type: asking an object for its class may wake a deprecated one that warns.
        kind = DistributedDataParallel
        self._models = [each for each in gc.get_objects() if issubclass(type(each), kind)]
        self._calls = Counter[int]()
        self._exchanges = Counter[int]()

    def record(self, patches: Patches) -> None:
        """One step, as it is."""

        def note(module: torch.nn.Module, args: Any, kwargs: Any) -> None:
            if module in self._models and torch.is_grad_enabled():
                self._calls[id(module)] += 1
                self._exchanges[id(module)] += bool(module.require_backward_grad_sync)

        self._forwards.listen(patches, before=note)

    def variants(self, site: Site | None) -> list[Variant]:
        """Fewer exchanges of gradients: none at all, and only the last of a step with several.

        Without any, what is left is every rank's own work. The ranks' parameters differ
        afterwards, so the run must end with these windows.
        """
        if not self._models:
            return []
        alone = Variant(
            name=ALONE,
            cause="communication",
            what="gradients were not exchanged",
            site=site,
            begin=self._never,
            shared=True,
        )
        most = max(self._exchanges.values(), default=0)
        if most < 2:
            return [alone]
        what = f"gradients were exchanged once per step instead of {most} times"
        name = f"{EXCHANGED_ONCE} of {most}"
        return [alone, replace(alone, name=name, what=what, begin=self._once)]

    def _exchange(self, on: bool, only: torch.nn.Module | None = None) -> None:
        for model in self._models:
            if only is None or model is only:
                model.require_backward_grad_sync = on

    def _never(self, patches: Patches) -> None:
        self._exchange(False)
        patches.on_undo(partial(self._exchange, True))

    def _once(self, patches: Patches) -> None:
        calls = Counter[int]()

        def before(module: torch.nn.Module, args: Any, kwargs: Any) -> None:
            if module in self._models and torch.is_grad_enabled():
                calls[id(module)] += 1
                of_step = max(1, self._calls[id(module)])
                self._exchange(calls[id(module)] % of_step == 0, module)

        patches.on_undo(partial(self._exchange, True))
        self._forwards.listen(patches, before=before)
