"""Is it known before a training step runs what it needs? Does a job that does not fit shrink?"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from diagnose.measure.machine.fitting import USABLE_SHARE, fit, training_bytes
from diagnose.measure.ranks.scaling.program import size_down
from diagnose.workload import Batch, Network, Size, Workload
from tests.support.cli import diagnose, read_record

WIDTH = 256
Loss = Callable[[nn.Module, Batch], torch.Tensor]


def job(loss: Loss, batch: int = 64) -> Workload:
    return Workload(
        name="layers",
        sizes={"seed": Size(batch)},
        model=Network(lambda size: nn.Sequential(nn.Linear(4, WIDTH), nn.ReLU()), loss),
        synthetic_batch=lambda size, device: torch.ones(size.batch_size, 4, device=device),
    )


def mean(model: nn.Module, rows: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = model(rows)
    return out.mean()


def mean_of_some(model: nn.Module, rows: torch.Tensor) -> torch.Tensor:
    """As a job does that masks tokens: which rows are used is drawn, and how many."""
    chosen = torch.rand(len(rows)) < 2.0
    out: torch.Tensor = model(rows)[chosen]
    return out.mean() / max(1, int(chosen.sum()))


def test_activations_weights_gradients_and_states_are_counted() -> None:
    weights = 5 * WIDTH * 4
    few, many = (training_bytes(job(mean), Size(batch)) for batch in (1000, 3000))
    assert few is not None
    assert many is not None
    # Results of both layers, and the gradient of the last, at least; at most one copy more.
    per_row = (many - few) / 2000 / (WIDTH * 4)
    assert 2.9 < per_row < 4.2
    # Weights, gradients and two states of each.
    assert few - 1000 * per_row * WIDTH * 4 == pytest.approx(4 * weights, rel=0.3)


def test_work_that_depends_on_drawn_numbers_is_counted() -> None:
    assert training_bytes(job(mean_of_some), Size(100)) is not None


def test_nothing_is_said_where_the_work_depends_on_results() -> None:
    def on_results(model: nn.Module, rows: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = model(rows)
        return out.mean() if out.sum().item() > 0 else out.sum()

    assert training_bytes(job(on_results), Size(10)) is None
    assert fit(job(on_results), Size(64), 1) == (Size(64), "")


def test_the_largest_power_of_two_that_fits() -> None:
    needed = training_bytes(job(mean), Size(4096))
    assert needed is not None
    assert fit(job(mean), Size(4096), 2 * needed) == (Size(4096), "")
    smaller, why = fit(job(mean), Size(4096), needed // 3)
    assert smaller == Size(1024)
    assert why.startswith("1024 instead of 4096: a training step of that takes about 0.0 GiB")
    assert fit(job(mean), Size(4096), 1)[0] == Size(1)


def test_further_replicas_take_from_the_batch() -> None:
    needed = training_bytes(job(mean), Size(4096))
    assert needed is not None
    replica = 5 * 5 * WIDTH * 4  # five times the weights: gradients twice, two states
    room = int((needed + 2 * replica) / USABLE_SHARE) + 1
    assert fit(job(mean), Size(4096), room, 2) == (Size(4096), "")
    smaller, why = fit(job(mean), Size(4096), room, 4)
    assert smaller == Size(2048)
    assert "with 5 models in memory" in why


JOB = """
import torch
from torch import nn
from diagnose.workload import Network, Size, Workload

WORKLOAD = Workload(
    name="wide",
    sizes={"seed": Size(SIZE), "small": Size(64)},
    model=Network(
        lambda size: nn.Sequential(nn.Linear(4, 256), nn.ReLU()),
        lambda model, rows: model(rows).mean(),
    ),
    synthetic_batch=lambda size, device: torch.ones(size.batch_size, 4, device=device),
)
"""


@pytest.mark.parametrize(
    ("batch", "expected"), [(65536, "16384 instead of 65536: a training step"), (1024, None)]
)
def test_a_job_that_does_not_fit_the_card_is_sized_down(
    fakegpu_env: dict[str, str], tmp_path: Path, batch: int, expected: str | None
) -> None:
    path = tmp_path / "wide.py"
    path.write_text(JOB.replace("SIZE", str(batch)))
    made = diagnose(
        "run", "--workload", path, "--device", "fakegpu", "--smoke", "--stages", "training",
        "--label", "fits", "--reports", tmp_path, **fakegpu_env, FAKEGPU_LIMIT_BYTES=str(64 * 2**20)
    )  # fmt: skip
    assert made.code == 0, made.err
    settings = read_record(tmp_path, "fits")["workload"]["settings"]
    told = settings.get("sized_down")
    assert told is None if expected is None else told.startswith(expected)
    assert settings["batch_size"] == min(batch, 16384)
    page = (tmp_path / "fits" / "report.md").read_text()
    assert ("`sized_down`" in page) is (expected is not None)


class Ranks:
    """What sizing asks of a rank: its device, and what the others say."""

    def __init__(self, *free: int | None) -> None:
        self.device, self._free = self, free

    def free_bytes(self) -> int | None:
        return self._free[0]

    def gather_objects(self, value: object) -> list[int | None]:
        assert value == self._free[0]
        return list(self._free)


def test_ranks_agree_on_a_batch_that_fits_the_fullest_card() -> None:
    needed = training_bytes(job(mean), Size(4096))
    assert needed is not None
    usual = {"size": None, "batch_size": None, "only": ()}

    def sized(*free: int | None, **asked: object) -> tuple[Size, str]:
        ranks: Any = Ranks(*free)
        return size_down(job(mean), Size(4096), {**usual, **asked}, ranks)

    size, why = sized(10 * needed, needed // 3)
    assert size == Size(1024)
    assert why.startswith("1024 instead of 4096")
    assert "with 2 models in memory" in why, "the ledger's weights stay"
    both = ("bucket_cap_100", "bucket_cap_200")
    assert "with 4 models in memory" in sized(needed // 3, only=both)[1]
    # What was asked for is taken as it is, and the CPU says nothing.
    for told in (sized(1, size="seed"), sized(1, batch_size=4096), sized(None, None)):
        assert told == (Size(4096), "")
