"""What can be done on the fake GPU? Each function does one thing and returns what it saw.

Runs as a program in a process that has the device, and prints one JSON object: for every
scenario its answer, or the traceback that it ended with.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import io
import json
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.flop_counter import FlopCounterMode

Answer = Mapping[str, object]


def find_device() -> Answer:
    accelerator = torch.accelerator.current_accelerator()
    torch.accelerator.synchronize()
    return {
        "accelerator": str(accelerator),
        "available": torch.accelerator.is_available(),
        "count": torch.accelerator.device_count(),
        "is_fake": torch.get_device_module("fakegpu").is_fake,
        "new_tensor": str(torch.ones(1, device="fakegpu").device),
    }


def refuse_other_devices() -> Answer:
    attempts: dict[str, Callable[[], torch.Tensor]] = {
        "second device": lambda: torch.ones(1, device="fakegpu:1"),
        "mixed devices": lambda: torch.ones(1, device="fakegpu") + torch.ones(1),
    }
    refusals = {}
    for name, attempt in attempts.items():
        try:
            attempt()
        except RuntimeError as error:
            refusals[name] = str(error)
    return refusals


def compute_like_cpu() -> Answer:
    """The largest difference from the CPU, of results and gradients."""
    torch.manual_seed(0)
    left, right = torch.randn(8, 5), torch.randn(5, 3)
    product = (left.to("fakegpu") @ right.to("fakegpu")).cpu()

    lstm = nn.LSTM(4, 6, num_layers=2, bidirectional=True)
    sequence = torch.randn(3, 2, 4)
    expected = lstm_gradients(lstm, sequence)
    actual = lstm_gradients(copy.deepcopy(lstm).to("fakegpu"), sequence.to("fakegpu"))

    strided = torch.zeros(2, 3, device="fakegpu")
    strided.t()[1:].add_(1)
    return {
        "matmul": largest_difference([product], [left @ right]),
        "lstm": largest_difference(actual, expected),
        "write_through_view": strided.cpu().tolist(),
        "out_argument": torch.add(
            torch.ones(2, device="fakegpu"), 1, out=torch.empty(0, device="fakegpu")
        ).tolist(),
    }


def lstm_gradients(lstm: nn.LSTM, sequence: torch.Tensor) -> list[torch.Tensor]:
    output, (_, cell) = lstm(sequence)
    (output.square().sum() + cell.sum()).backward()
    return [output.detach(), *gradients(lstm)]


def gradients(module: nn.Module) -> list[torch.Tensor]:
    return [weight.grad for weight in module.parameters() if weight.grad is not None]


def largest_difference(actual: list[torch.Tensor], expected: list[torch.Tensor]) -> float:
    return max(
        (one.cpu() - other.cpu()).abs().max().item()
        for one, other in zip(actual, expected, strict=True)
    )


def train_bert() -> Answer:
    return train_bert_in(None)


def train_bert_in_bfloat16() -> Answer:
    return train_bert_in(torch.bfloat16)


def train_bert_in(dtype: torch.dtype | None) -> Answer:
    from transformers import BertConfig, BertForMaskedLM

    torch.manual_seed(0)
    shape = {"num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    config = BertConfig(vocab_size=64, hidden_size=32, **shape)
    on_cpu = BertForMaskedLM(config).eval()  # without dropout, so that both can be compared
    on_device = copy.deepcopy(on_cpu).to("fakegpu")
    tokens = torch.randint(0, 64, (2, 16))
    mask = torch.ones_like(tokens)
    mask[1, 8:] = 0

    losses, logit_dtypes = [], []
    for model in (on_cpu, on_device):
        device = next(model.parameters()).device
        ids = tokens.to(device)
        autocast = torch.autocast(device.type, dtype=dtype) if dtype else contextlib.nullcontext()
        with autocast:
            result = model(input_ids=ids, attention_mask=mask.to(device), labels=ids)
        result.loss.backward()
        losses.append(result.loss.item())
        logit_dtypes.append(str(result.logits.dtype))

    before = [weight.detach().cpu().clone() for weight in on_device.parameters()]
    torch.optim.AdamW(on_device.parameters()).step()
    return {
        "losses": losses,
        "logit_dtype": logit_dtypes[1],
        "gradient_difference": largest_difference(gradients(on_device), gradients(on_cpu)),
        "step": largest_difference([w.detach() for w in on_device.parameters()], before),
    }


def keep_tied_weights() -> Answer:
    outer, inner = nn.Linear(3, 3), nn.Linear(3, 3)
    inner.weight = outer.weight
    optimizer = torch.optim.SGD(outer.parameters(), lr=1.0)
    nn.ModuleList([outer, inner]).to("fakegpu")
    return {
        "tied": outer.weight is inner.weight,
        "optimised": optimizer.param_groups[0]["params"][0] is outer.weight,
        "device": outer.weight.device.type,
    }


def load_batches() -> Answer:
    dataset = TensorDataset(torch.arange(8.0))
    seen = {}
    for workers in (0, 1):
        pinned, values = [], []
        for (batch,) in DataLoader(dataset, 4, num_workers=workers, pin_memory=True):
            pinned.append(batch.is_pinned())
            values += batch.to("fakegpu", non_blocking=True).tolist()
        seen[f"{workers} workers"] = {"pinned": pinned, "values": values}
    return seen | {"ordinary_is_pinned": torch.ones(1).is_pinned()}


def scale_gradients() -> Answer:
    layer = nn.Linear(4, 4).to("fakegpu")
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
    scaler = torch.amp.GradScaler("fakegpu", init_scale=8.0)
    before = layer.bias.detach().cpu().clone()
    scaler.scale(layer(torch.ones(1, 4, device="fakegpu")).sum()).backward()
    scaled = layer.bias.grad
    assert scaled is not None
    scaled_gradient = scaled.tolist()
    scaler.step(optimizer)
    scaler.update()
    moved = (before - layer.bias.detach().cpu()).tolist()
    (layer(torch.ones(1, 4, device="fakegpu")).sum() * float("inf")).backward()
    scaler.step(optimizer)
    scaler.update()
    return {
        "scaled_gradient": scaled_gradient,
        "moved": [round(step, 5) for step in moved],
        "scale_after_overflow": scaler.get_scale(),
    }


def count_flops() -> Answer:
    left, right = torch.ones(3, 5, device="fakegpu"), torch.ones(5, 7, device="fakegpu")
    with FlopCounterMode(display=False) as counter:
        _ = left @ right
    return {"flops": counter.get_total_flops()}


def record_events() -> Answer:
    first = torch.Event("fakegpu", enable_timing=True)
    second = torch.Event("fakegpu", enable_timing=True)
    first.record()
    torch.ones(64, 64, device="fakegpu").sum()
    second.record()
    second.synchronize()
    side = torch.Stream("fakegpu")
    with side:
        current_inside = torch.accelerator.current_stream() == side
    return {
        "ordered": first.elapsed_time(second) > 0,
        "done": second.query(),
        "stream_inside": current_inside,
        "stream_outside": torch.accelerator.current_stream() == side,
    }


def account_for_memory() -> Answer:
    module = torch.get_device_module("fakegpu")
    gc.collect()
    base = module.memory_allocated()
    module.reset_peak_memory_stats()
    small = torch.empty(1_000, dtype=torch.uint8, device="fakegpu")
    large = torch.empty(10_000, dtype=torch.uint8, device="fakegpu")
    del large
    free, total = module.mem_get_info()
    answer = {
        "current": module.memory_allocated() - base,
        "peak": module.max_memory_allocated() - base,
        "reserved": module.memory_reserved() - base,
        "in_use": total - free - base,
        "same_for_torch": torch.accelerator.memory_allocated() == module.memory_allocated(),
        "total_is_limit": module.get_device_properties(0).total_memory == total,
    }
    del small
    return answer | {"after": module.memory_allocated() - base}


def run_out_of_memory() -> Answer:
    """Twice in a training step: what the first failure held must be free for the second."""
    module = torch.get_device_module("fakegpu")
    gc.collect()
    base = module.memory_allocated()
    _, limit = module.mem_get_info()
    held, errors = [], []
    for _ in range(2):
        layer = nn.Linear(100, 100).to("fakegpu")
        module.set_limit_bytes(module.memory_allocated() + 100_000)
        try:
            layer(torch.empty(200, 100, device="fakegpu")).square().sum().backward()
        except torch.OutOfMemoryError as error:
            errors.append(f"{type(error).__module__}.{type(error).__name__}: {error}")
        finally:
            module.set_limit_bytes(limit)
        del layer
        gc.collect()
        held.append(module.memory_allocated() - base)
    again = torch.ones(100_000, device="fakegpu").sum().item()
    return {"errors": errors, "held_after": held, "works_again": again}


def repeat_random_numbers() -> Answer:
    torch.manual_seed(1)
    first = torch.randn(4, device="fakegpu").tolist()
    torch.manual_seed(1)
    return {"first": first, "second": torch.randn(4, device="fakegpu").tolist()}


def save_and_load() -> Answer:
    file = io.BytesIO()
    torch.save({"weight": torch.arange(3.0, device="fakegpu")}, file)
    file.seek(0)
    weight = torch.load(file)["weight"]
    return {"device": weight.device.type, "values": weight.tolist()}


SCENARIOS: tuple[Callable[[], Answer], ...] = (
    find_device,
    refuse_other_devices,
    compute_like_cpu,
    train_bert,
    train_bert_in_bfloat16,
    keep_tied_weights,
    load_batches,
    scale_gradients,
    count_flops,
    record_events,
    account_for_memory,
    run_out_of_memory,
    repeat_random_numbers,
    save_and_load,
)


def run_all(scenarios: Sequence[Callable[[], Answer]]) -> dict[str, Answer]:
    answers: dict[str, Answer] = {}
    for scenario in scenarios:
        try:
            answers[scenario.__name__] = scenario()
        # One broken operator must not hide what the other scenarios would have said.
        except Exception:
            answers[scenario.__name__] = {"traceback": traceback.format_exc()}
    return answers


if __name__ == "__main__":
    json.dump(run_all(SCENARIOS), sys.stdout)
