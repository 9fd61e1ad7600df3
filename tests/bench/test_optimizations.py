"""The catalogues at tiny size: what must be equal is equal, what was published wrong is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
import torch

from bench.dgca.model import ORIGINAL
from bench.optimizations import dgca_data
from bench.optimizations.dgca_lab import build_exact_model
from diagnose.measure.jobs import load
from diagnose.measure.optimize.experiment import prove
from diagnose.workload import Condition, Lab, Optimization, Treatment

pytestmark = pytest.mark.long

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIAGNOSE_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


def lab(name: str, condition: Condition = "real data") -> Lab:
    size = load(name).sizes["tiny"]
    if name == "dgca":
        # Enough samples that a few of them are hit by what is wrong.
        size = replace(size, batch_size=32)
    return Lab(CPU, size, 0, condition=condition)


def treatment(name: str) -> Treatment:
    made = load(name).treatment
    assert made is not None
    return made()


def catalogued() -> Iterator[object]:
    """All but compiling, which takes half a minute and is tried by the experiment itself."""
    for name in ("dgca", "timeseries"):
        for each in treatment(name).optimizations:
            if "compile" not in each.key:
                yield pytest.param(name, each, id=f"{name}-{each.key}")


@pytest.mark.parametrize(("name", "optimization"), [*catalogued()])
def test_a_change_keeps_its_claim(name: str, optimization: Optimization) -> None:
    assert set(optimization.after.trials) == set(optimization.before.trials)
    for side in optimization.published:
        assert set(side.trials) <= set(optimization.before.trials)
    if optimization.obstacle(lab(name)):
        return
    equality = prove(optimization, optimization.after, lab(name))
    assert equality.checks
    assert equality.claim == ("equal" if optimization.claims_equality else "not claimed")
    # The tiny data have too few rows for a last, short batch that could be dropped.
    if optimization.key != "loader_drop_last":
        equal = all(check.equal for check in equality.checks)
        assert equal == optimization.claims_equality


@pytest.mark.parametrize(
    ("key", "position", "equal"),
    [
        ("apply_prompt", 0, False),  # sample 0's places are not everybody's
        ("apply_prompt", 1, True),  # unless all sentences are equally long
        ("dynamic_mask", 0, False),  # [UNK] is forgotten
        ("gated_fusion", 0, False),  # duplicates are summed
    ],
)
def test_the_published_form_is_wrong_where_it_is(key: str, position: int, equal: bool) -> None:
    optimization = treatment("dgca").find(key)
    published = optimization.published[position]
    equality = prove(optimization, published, lab("dgca", published.condition))
    assert all(check.equal for check in equality.checks) is equal
    if not equal:
        wrong = [c.differing_samples for c in equality.checks if c.differing_samples is not None]
        assert any(wrong)


def test_gradients_are_compared_in_training_mode_without_dropout() -> None:
    """cuDNN refuses the backward pass of recurrent layers in the other mode."""
    model = build_exact_model(lab("dgca"), ORIGINAL)
    assert model.training
    assert not any(part.p for part in model.modules() if isinstance(part, torch.nn.Dropout))


def test_prefetching_never_times_the_start_of_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many short epochs fit into a slot of one side, and hardly one into the other's."""
    kept: list[bool] = []

    def stop(lab: object, *rows: int, **options: Any) -> NoReturn:
        kept.append(options["persistent_workers"])
        raise LookupError

    monkeypatch.setattr(dgca_data, "_loader", stop)
    lab: Any = SimpleNamespace(size=SimpleNamespace(batch_size=1))
    (tried,) = (each for each in dgca_data.OPTIMIZATIONS if each.key == "loader_prefetch")
    for side in (tried.before, tried.after):
        with pytest.raises(LookupError):
            side.outcome(lab)
    assert kept == [True, True]
