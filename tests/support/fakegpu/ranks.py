"""How do two ranks wait for each other on their devices? `python -m ... RANK FILE` is one rank.

Rank 1 has more work on its device before it comes to the collective. Prints one JSON object.
"""

from __future__ import annotations

import json
import sys
import time

import torch
from torch import distributed, nn
from torch.distributed import FileStore  # type: ignore[attr-defined]
from torch.nn.parallel import DistributedDataParallel

MORE_KERNELS = 50


def main(rank: int, file: str) -> None:
    fakegpu = torch.get_device_module("fakegpu")
    store = FileStore(file, 2)
    distributed.init_process_group("fakeccl", store=store, rank=rank, world_size=2)
    numbers = torch.full((1000,), float(rank + 1), device="fakegpu")
    distributed.barrier()
    torch.accelerator.synchronize()

    first = fakegpu.kernel_count()
    for _ in range(1 + rank * MORE_KERNELS):
        numbers.add_(0)
    began = time.perf_counter()
    distributed.all_reduce(numbers)
    numbers.add_(1)
    launching = time.perf_counter() - began
    value = numbers[0].item()
    log = fakegpu.kernel_log(first)
    (exchange,) = (each for each in log if each.kind == "collective")
    after = log[log.index(exchange) + 1]

    torch.manual_seed(rank)
    layer = DistributedDataParallel(nn.Linear(4, 4).to("fakegpu"))
    layer(torch.full((2, 4), float(rank), device="fakegpu")).sum().backward()
    gradient = layer.module.weight.grad
    assert gradient is not None
    json.dump(
        {
            "value": value,
            "more_kernels": MORE_KERNELS,
            "launching": launching,
            "exchange": exchange.end - exchange.start,
            "end": exchange.end,
            "own_stream": exchange.stream != after.stream,
            "next_follows": after.start >= exchange.end,
            "gradient": gradient[0].tolist(),
            "weight": layer.module.weight[0].tolist(),
        },
        sys.stdout,
    )
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
