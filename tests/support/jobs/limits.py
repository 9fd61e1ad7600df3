"""What is the largest batch under several limits? Searched with real probes in one process.

`python -m tests.support.jobs.limits fakegpu 10 20` takes MiB of a device's memory, `cpu` MiB that
the process may take beyond what it has. Every limit is answered with what was free and all probes.
"""

from __future__ import annotations

import json
import resource
import sys

import torch

from diagnose.measure.batch_size.plan import guess
from diagnose.measure.batch_size.probe import probe_batch, read_available, sized
from diagnose.measure.batch_size.search import judge, search
from diagnose.measure.clock import EFFORTS
from diagnose.measure.machine.device import open_device
from diagnose.measure.stages.plan import Context
from diagnose.records.batch_size import Probe
from diagnose.records.codec import to_dict
from tests.support.jobs.sized import WORKLOAD
from tests.support.jobs.small import limit_memory

MIB = 2**20


def main() -> None:
    kind, *limits = sys.argv[1:]
    size = WORKLOAD.sizes["only"]
    context = Context(open_device(kind), WORKLOAD, "only", size, EFFORTS["smoke"], seed=0)
    probe_batch(sized(context, 1, 1), read_available(context, 1), mixed=False)  # builds the model
    print(json.dumps([answer(context, int(limit) * MIB) for limit in limits]))


def answer(context: Context, nbytes: int) -> dict[str, object]:
    if context.device.is_cpu:
        # The limit before was a guard of its own; only then is the new one what counts.
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
        limit_memory(nbytes)
    else:
        torch.get_device_module(context.device.kind).set_limit_bytes(nbytes)
    available = read_available(context, 1)

    def probe(batch: int) -> Probe:
        made, _ = probe_batch(sized(context, batch, 1), available, mixed=False)
        return judge(made, ())

    made = search(probe, guess=lambda seen: guess(seen, ()))
    return {"available": available.value, "probes": [to_dict(each) for each in made]}


if __name__ == "__main__":
    main()
