"""The catalogue at tiny size: what must be equal is equal, what was published wrong is wrong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bench.dgca.workload import SIZES
from bench.optimizations.catalogue import OPTIMIZATIONS
from diagnose.measure.optimize.experiment import prove
from diagnose.workload import Condition, Lab, Optimization

# Compiling takes half a minute and is tried by the experiment itself.
PROVEN = [each for each in OPTIMIZATIONS if each.claims_equality and each.key != "torch_compile"]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIAGNOSE_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


def lab(condition: Condition = "real data") -> Lab:
    # Enough samples that a few of them are hit by what is wrong.
    size = replace(SIZES["tiny"], batch_size=32)
    return Lab(torch.device("cpu"), size, 0, condition=condition)


@pytest.mark.parametrize("optimization", PROVEN, ids=lambda each: each.key)
def test_the_correct_form_computes_the_same(optimization: Optimization) -> None:
    equality = prove(optimization, optimization.after, lab())
    assert equality.checks
    assert [check for check in equality.checks if not check.equal] == []


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
    optimization = next(each for each in OPTIMIZATIONS if each.key == key)
    published = optimization.published[position]
    equality = prove(optimization, published, lab(published.condition))
    assert all(check.equal for check in equality.checks) is equal
    if not equal:
        wrong = [c.differing_samples for c in equality.checks if c.differing_samples is not None]
        assert any(wrong)


@pytest.mark.parametrize("optimization", OPTIMIZATIONS, ids=lambda each: each.key)
def test_both_sides_offer_the_same_scopes(optimization: Optimization) -> None:
    assert set(optimization.after.trials) == set(optimization.before.trials)
    for side in optimization.published:
        assert set(side.trials) <= set(optimization.before.trials)


def test_no_side_names_a_path(tmp_path: Path) -> None:
    texts = [side.text for each in OPTIMIZATIONS for side in (each.before, each.after)]
    assert not [text for text in texts if "/" in text or str(tmp_path) in text]
