"""The small parts that stages are made of, without running a stage."""

from __future__ import annotations

from collections import UserDict

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence

from diagnose.measure.clock import QUICK, Timed, measure
from diagnose.measure.stage import count_flops
from diagnose.measure.stages.batches import tensor_bytes
from diagnose.measure.stages.steps import to_device
from tests.support.fake_timer import FakeTimer

META = torch.device("meta")


def test_every_usual_kind_of_batch_is_moved() -> None:
    row = torch.zeros(2)
    moved = to_device({"a": row, "b": [row, (row, "text")]}, META)
    assert moved["a"].device == moved["b"][0].device == moved["b"][1][0].device == META
    assert moved["b"][1][1] == "text"
    assert to_device(UserDict(a=row), META)["a"].device == META  # like HF's BatchEncoding
    assert to_device(pack_sequence([row]), torch.device("cpu")).data.device.type == "cpu"


def test_the_bytes_of_a_nested_batch() -> None:
    row = torch.zeros(4)
    assert tensor_bytes({"a": row, "b": [row, (row, "text")]}) == 48
    assert tensor_bytes(UserDict(a=row)) == 16


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_attention_is_counted_with_and_without_dropout(dropout: float) -> None:
    """Two fused and unfused paths of the CPU; both do two products of 2·B·H·L·L·D each."""
    query = torch.randn(2, 3, 16, 8, requires_grad=True)
    forward = 2 * 2 * 2 * 3 * 16 * 16 * 8

    def attend() -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(query, query, query, dropout_p=dropout)

    assert count_flops(attend) == forward
    backward = count_flops(lambda: torch.autograd.backward(attend().sum())) - forward
    assert backward in (2 * forward, forward * 5 // 2)  # unfused, or fused with recomputation


@pytest.mark.parametrize("variants", [1, 2, 3])
def test_energy_never_leaves_too_few_slots(variants: int) -> None:
    """A counter that moves every 100 ms wants slots of two seconds; a quick run has twelve."""
    timer = FakeTimer()
    tracks = measure(
        [Timed(str(i), lambda: timer.spend(0.01)) for i in range(variants)],
        QUICK,
        timer,
        seed=0,
        least_slot_seconds=2.0,
    )
    assert all(len(track.blocks) >= QUICK.fewest_slots for track in tracks)
