"""What does it cost to simulate a device, and to write down what a device does in five steps?

    PYTHONPATH=$(make -s fakegpu) TORCH_DEVICE_BACKEND_AUTOLOAD=1 FAKEGPU_PROFILE=h100 \\
        python -m bench.device_cost

Alone on the machine. An operator of the simulated device computes on the CPU as the CPU's own does;
what it takes longer is what the simulation adds. The recording is that of `diagnose script`, of a
model with some thousand kernels a step; its seconds are those around the steps, reading included.
"""

from __future__ import annotations

import resource
import statistics
import time

import torch

from bench.kept import REPORTS, table
from diagnose.measure.machine.device import Device
from diagnose.measure.script.watch.activity import RECORDED_STEPS, Recording, read_activity
from diagnose.records.stats import hodges_lehmann

LIMIT_MICROSECONDS, LIMIT_SECONDS, LIMIT_MEGABYTES = 15.0, 3.0, 200.0
OPERATORS = 400  # fewer than the queue holds, so that the host never waits for the device
BLOCKS = 200
LAYERS = 24


def operator_cost(device: torch.device) -> list[float]:
    """Microseconds that each operator takes longer than on the CPU, block by block."""
    tensors = {each: torch.zeros(1000, device=each) for each in (device, torch.device("cpu"))}

    def seconds(tensor: torch.Tensor) -> float:
        began = time.perf_counter()
        for _ in range(OPERATORS):
            tensor.add_(1)
        took = time.perf_counter() - began
        torch.accelerator.synchronize()
        return took

    return [
        1e6 * (seconds(tensors[device]) - seconds(tensors[torch.device("cpu")])) / OPERATORS
        for _ in range(BLOCKS)
    ]


def recording_cost(device: torch.device) -> tuple[float, float, float]:
    """Seconds around five steps, megabytes that the process grew by, kernels of a step."""
    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, LAYERS).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    batch = torch.randn(4, 16, 64, device=device)

    def step() -> None:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    for _ in range(3):
        step()
    torch.accelerator.synchronize()
    before, began, inside = _peak_megabytes(), time.perf_counter(), 0.0
    recording = Recording()
    with recording as profiler:
        for _ in range(RECORDED_STEPS):
            started = time.perf_counter()
            step()
            inside += time.perf_counter() - started
            profiler.step()
    activity, why = read_activity(recording, Device(device.type))
    recording.forget()
    assert activity is not None, why
    took = time.perf_counter() - began - inside
    return took, _peak_megabytes() - before, activity.kernels


def _peak_megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    device = torch.accelerator.current_accelerator()
    if device is None:
        raise SystemExit("device_cost: torch sees no accelerator; see above for the simulated one")
    torch.set_num_threads(1)
    seconds, megabytes, kernels = recording_cost(device)
    recorded = f"recording {RECORDED_STEPS - 1} steps of {kernels:.0f} kernels, seconds"
    rows = [
        (recorded, f"{seconds:.2f}", f"{LIMIT_SECONDS:g}"),
        ("the same, peak memory in MB", f"{megabytes:.0f}", f"{LIMIT_MEGABYTES:g}"),
    ]
    if Device(device.type).is_fake:
        added = operator_cost(device)
        interval = hodges_lehmann(added)
        simulated = f"simulating an operator, µs (median of {BLOCKS} blocks of {OPERATORS}: "
        simulated += f"{statistics.median(added):.1f})"
        found = f"{interval.center:.1f} [{interval.low:.1f}, {interval.high:.1f}]"
        rows.append((simulated, found, f"{LIMIT_MICROSECONDS:g}"))
    name = torch.get_device_module(device).get_device_properties(0).name
    page = "\n".join(
        [
            "# What does it cost to see what a device does?\n",
            f"Written by `python -m bench.device_cost` on: {name}.\n",
            *table(("<what", ">found", ">allowed"), rows),
        ]
    )
    (REPORTS / "device_cost.md").write_text(f"{page}\n", encoding="utf-8")
    print(page)


if __name__ == "__main__":
    main()
