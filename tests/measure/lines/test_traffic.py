"""Are the bytes of operands counted as they are read and written, views and tables apart?"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from diagnose.measure.lines.traffic import Traffic

KB = torch.zeros(256)  # 1024 bytes
TABLE, ROWS = torch.zeros(1000, 64), torch.arange(4)


WEIGHT = torch.zeros(256, requires_grad=True)
WEIGHT.grad = torch.ones(256)
FUSED = torch.optim.SGD([WEIGHT], lr=0.1, fused=True)


@pytest.mark.parametrize(
    ("work", "nbytes"),
    [
        (lambda: KB + KB, 3 * 1024),
        (lambda: KB.add_(1), 2 * 1024),
        (lambda: KB.view(16, 16).t()[1:], 0),
        (lambda: torch.mm(KB.view(16, 16), KB.view(16, 16)), 3 * 1024),
        (lambda: torch.nn.functional.embedding(ROWS, TABLE), 2 * 4 * 64 * 4),
        (lambda: torch._foreach_add_([KB, KB], 1.0), 4 * 1024),
        # It reads weight and gradient, hands back nothing, and may change both.
        (FUSED.step, 4 * 1024),
    ],
)
def test_every_operand_and_result_counts_once(work: Callable[[], object], nbytes: int) -> None:
    with Traffic("cuda") as elsewhere, Traffic("cpu") as seen:
        work()
    assert (seen.nbytes, elsewhere.nbytes) == (nbytes, 0)
