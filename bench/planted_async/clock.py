"""How long does a step of a script take by the device's own clock?

    python -m bench.planted_async.clock SCRIPT STEPS

runs the script unchanged, and prints one JSON object after the script's own output. A step ends
where the last kernel of its optimizer ends; nothing is waited for in between. Of several ranks the
first one speaks: they end their steps together.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

# Until queue, caches and allocator are what they will be.
WARM_UP = 8
# Of consecutive steps, so that chance shows.
BLOCKS = 8


def main(script: str, steps: int) -> None:
    device: Any = torch.get_device_module("fakegpu")
    launched: list[int] = []
    register_optimizer_step_post_hook(lambda *_: launched.append(device.kernel_count()))
    sys.argv = [script, "--steps", str(steps)]
    runpy.run_path(script, run_name="__main__")
    torch.accelerator.synchronize()
    first, last = launched[WARM_UP - 1], launched[-1]
    begin, *kernels = device.kernel_log(first - 1)[: last - first + 1]
    ends = [begin.end, *(kernels[each - first - 1].end for each in launched[WARM_UP:])]
    span = ends[-1] - begin.end
    busy, until = 0.0, begin.end
    for kernel in sorted(kernels, key=lambda each: each.start):
        busy += max(kernel.end - max(kernel.start, until), 0.0)
        until = max(until, kernel.end)
    count = len(launched) - WARM_UP
    length = max(1, count // BLOCKS)
    blocks = [
        (ends[at + length] - ends[at]) / length for at in range(0, count - length + 1, length)
    ]
    seen = {"seconds": span / count, "busy": busy / span, "kernels": len(kernels) / count}
    if os.environ.get("RANK", "0") == "0":
        print(json.dumps({**seen, "blocks": blocks}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
