"""Which phase of a step does the device's work belong to? The one that waits for it.

Queued work is waited for in the phase that asked for it, but only in steps that are sampled or
mapped: in plain steps and in the windows of a trial host and device must overlap as ever.
"""

from __future__ import annotations

from typing import Any

import torch

from diagnose.measure.script.patches import Patches
from diagnose.measure.script.watch.seen import Instruments


def settle(watch: Instruments, patches: Patches) -> None:
    """Until the patches are undone."""
    if watch.device.is_cpu:
        return

    def before_forward(*_: object) -> None:
        watch.device.synchronize()

    def after_forward(*_: object) -> None:
        watch.device.synchronize()

    def settled(original: Any) -> Any:
        def run_backward(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            watch.device.synchronize()
            return result

        watch.stacks.count_as(run_backward.__code__, "backward")
        return run_backward

    watch.stacks.count_as(after_forward.__code__, "forward")
    watch.forwards.listen(patches, before=before_forward, after=after_forward)
    patches.put(torch.autograd, "_engine_run_backward", settled)
    patches.set(watch.boundary, "settle", before_forward)
