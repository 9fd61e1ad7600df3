"""Is every tensor a number that says what is in it?"""

from __future__ import annotations

import pytest
import torch

from diagnose.measure.prove.values import digest


def _sparse(value: float) -> torch.Tensor:
    return torch.tensor([[0.0, value], [2.0, 0.0]]).to_sparse()


def _nested(value: float) -> torch.Tensor:
    return torch.nested.nested_tensor([torch.tensor([1.0, value]), torch.tensor([2.0])])


def _complex(value: float) -> torch.Tensor:
    return torch.tensor([complex(1.0, value)])


@pytest.mark.parametrize("make", [_sparse, _nested, _complex])
def test_tensors_of_any_layout_have_a_digest(make: object) -> None:
    assert callable(make)
    assert digest([make(3.0)]) == digest([make(3.0)]) != digest([make(3.5)])
