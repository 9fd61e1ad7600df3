"""The settings of the recurrent model: what must be equal is equal, what may differ says so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

import pytest
import torch

from bench.optimizations.lab import compiler_obstacle
from bench.optimizations.timeseries import OPTIMIZATIONS, TREATMENT
from bench.optimizations.timeseries_lab import (
    EPOCH,
    flops_per_sample,
    open_settings,
    settings_of,
    tf32_obstacle,
)
from bench.timeseries.epoch import read_parts
from bench.timeseries.settings import Settings
from bench.timeseries.workload import SIZES
from diagnose.workload import Lab, Optimization

LAB = Lab(torch.device("cpu"), SIZES["tiny"], seed=0)
LADDER = TREATMENT.ladder
KEYS = [each.key for each in OPTIMIZATIONS]


def test_every_step_of_the_ladder_is_a_setting_that_exists_and_changes_the_base() -> None:
    assert LADDER is not None
    known = asdict(Settings())
    assert set(LADDER.base) <= set(known)
    for key, patch in LADDER.patches.items():
        assert key in KEYS
        assert set(patch) <= set(known)
        assert settings_of(LAB, patch) != settings_of(LAB)
        assert EPOCH in TREATMENT.find(key).after.trials


@pytest.mark.long
def test_what_makes_another_model_is_never_on_the_ladder() -> None:
    assert LADDER is not None
    models = [each for each in OPTIMIZATIONS if _facts(each).get("changes_model")]
    assert [each.key for each in models] == [
        "hidden_128",
        "hidden_256",
        "hidden_512",
        "sequence_60",
        "sequence_90",
    ]
    assert not {each.key for each in models} & set(LADDER.patches)
    assert not any(each.claims_equality for each in models)


def _facts(optimization: Optimization) -> Mapping[str, object]:
    quick = optimization.facts is not None and "compile" not in optimization.key
    return optimization.facts(LAB) if quick and optimization.facts else {}


def test_an_epoch_covers_the_same_samples_whatever_the_batch() -> None:
    counts = set()
    for size in (128, 192, 512):
        with open_settings({"batch_size": size, "workers": 0})(LAB) as trial:
            trial.step()
            counts.add(trial.samples_per_step)
    assert counts == {len(read_parts(settings_of(LAB)).training)}, "every window of the series"


def test_losses_are_compared_at_equal_samples_where_numbers_may_change() -> None:
    with_curves = {each.key for each in OPTIMIZATIONS if each.curves is not None}
    changed = {"batch_192", "batch_256", "batch_512", "tf32", "mixed_precision", "all_together"}
    assert with_curves == changed
    optimization = TREATMENT.find("batch_512")
    assert optimization.curves is not None
    found = optimization.curves(LAB)
    assert list(found) == ["batch 128", "batch 512"]
    assert len(found["batch 128"]) == len(found["batch 512"])
    assert found["batch 128"] != found["batch 512"]


def test_flops_grow_with_the_square_of_the_hidden_size() -> None:
    def flops(**changes: int) -> int:
        return flops_per_sample(LAB, settings_of(LAB, changes))

    # One layer, by hand: 4 gates, width 35 + hidden 8, 7 days, forward and twice that backward.
    assert flops(layers=1) == 3 * 2 * 4 * 8 * (35 + 8) * 7
    assert flops(sequence=14) == 2 * flops()
    assert 3.5 < flops(hidden=512) / flops(hidden=256) < 4


@pytest.mark.parametrize(
    ("capability", "words"), [((7, 5), "this GPU has 7.5"), ((8, 0), ""), ((9, 0), "")]
)
def test_tf32_is_decided_by_the_compute_capability(
    capability: tuple[int, int], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    obstacle = tf32_obstacle(Lab(torch.device("cuda"), SIZES["tiny"], 0))
    assert (words in obstacle) if words else obstacle == ""


def test_what_cannot_act_here_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert "C++ compiler" in compiler_obstacle(LAB)
    reasons = {each.key: each.obstacle(LAB) for each in OPTIMIZATIONS}
    assert "NVIDIA" in reasons["tf32"]
    assert "CUDA" in reasons["cuda_graphs"]
