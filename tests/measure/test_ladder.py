"""Is the ladder climbed in the right order, and does a broken rung leave the others standing?"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from diagnose.measure.clock import SMOKE
from diagnose.measure.machine.device import open_device
from diagnose.measure.optimize.experiment import Bench, measure_ladder_step, run_experiments
from diagnose.measure.optimize.ladder import ALONE, Plan, carry_proofs, order_by_gain
from diagnose.records.experiments import Comparison, Equality
from diagnose.workload import Fact, Lab, Ladder, OpenTrial, Optimization, Side, Size, Trial
from tests.support.cli import ROOT, diagnose_here
from tests.support.records.experiments import compare, ended, equal, not_claimed, wrong

CLIMBING = ROOT / "tests" / "support" / "jobs" / "climbing.py"
EPOCH = "training epoch"
PLAN = Plan(
    EPOCH,
    {
        "batch_256": {"batch_size": 256},
        "batch_512": {"batch_size": 512},
        "no_workers": {"workers": 0},
        "set_to_none": {"set_to_none": True},
    },
)


def single(key: str, ratio: float, **options: object) -> Comparison:
    return compare(key, ratio, scope=EPOCH, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("found", "order"),
    [
        # The largest certain gain comes first.
        (
            [single("set_to_none", 1.1), single("no_workers", 2.0), single("batch_256", 1.5)],
            ("no_workers", "batch_256", "set_to_none"),
        ),
        # Of two values of one setting the better one is taken.
        ([single("batch_256", 1.5), single("batch_512", 1.7)], ("batch_512",)),
        ([single("no_workers", 0.8)], ()),
        ([single("set_to_none", 1.0)], ()),
        ([single("batch_256", 3.0, blocks=4)], ()),  # too few for an interval
        ([ended("batch_512", "failed", "out of memory")], ()),
        ([wrong("batch_512", "after", EPOCH)], ()),
        ([compare("no_workers", 3.0, scope="batch")], ()),
        ([single("hidden_128", 3.0)], ()),  # no patch: it changes the model
    ],
)
def test_only_certain_gains_are_climbed(found: list[Comparison], order: tuple[str, ...]) -> None:
    assert order_by_gain(found, PLAN) == order


def test_gains_are_compared_per_sample() -> None:
    made = single("batch_256", 1.0)
    assert made.after is not None
    more = replace(made, after=replace(made.after, samples_per_step=64))
    assert order_by_gain([more], PLAN) == ("batch_256",)


def test_a_rung_is_as_equal_as_its_changes() -> None:
    proven, shown = single("no_workers", 2.0), single("batch_256", 1.5, equality=not_claimed())
    rung = replace(compare("batch_256", 2.5, scope=EPOCH), equality=None)
    one = carry_proofs(rung, ["no_workers"], [proven, shown], EPOCH).equality
    both = carry_proofs(rung, ["no_workers", "batch_256"], [proven, shown], EPOCH).equality
    checks = tuple(replace(each, name=f"no_workers: {each.name}") for each in equal().checks)
    assert one == Equality(checks, "equal", ALONE)
    assert both is not None
    assert both.claim == "not claimed"


def bench() -> Bench:
    lab = Lab(torch.device("cpu"), Size(2), seed=3)
    return Bench(lab, open_device("cpu"), replace(SMOKE, limit_seconds=5.0))


def opener(seen: list[Mapping[str, Fact]]) -> Callable[[Mapping[str, Fact]], OpenTrial]:
    def open_settings(settings: Mapping[str, Fact]) -> OpenTrial:
        @contextmanager
        def trial(lab: Lab) -> Iterator[Trial]:
            seen.append(settings)
            yield Trial(lambda: None, 8)

        return trial

    return open_settings


def test_a_rung_holds_the_base_against_all_changes_so_far() -> None:
    seen: list[Mapping[str, Fact]] = []
    ladder = Ladder(EPOCH, {"workers": 4, "amp": False}, PLAN.patches, opener(seen))
    made = measure_ladder_step(ladder, ["no_workers", "batch_256"], bench())
    assert seen == [
        {"workers": 4, "amp": False},
        {"workers": 0, "amp": False, "batch_size": 256},
    ]
    assert (made.key, made.facts) == ("batch_256", {"added": "batch_256"})
    assert made.title == "no_workers + batch_256"
    sides = (made.before, made.control, made.after)
    assert [side.samples_per_step for side in sides if side is not None] == [8, 8, 8]


def curve_of(after: tuple[float, ...], obstacle: str = "") -> Comparison:
    @contextmanager
    def trial(lab: Lab) -> Iterator[Trial]:
        yield Trial(lambda: None, 2)

    side = Side("x", lambda lab: {"x": torch.zeros(1)}, {EPOCH: trial})
    made = Optimization(
        "x",
        "X",
        side,
        side,
        curves=lambda lab: {"before": (2.0, 1.0), "after": after},
        obstacle=lambda lab: obstacle,
    )
    (found,) = run_experiments(made, bench())
    return found


def test_losses_are_recorded_with_the_experiment() -> None:
    assert curve_of((2.0, 1.5)).curves == {"before": (2.0, 1.0), "after": (2.0, 1.5)}
    assert curve_of((2.0, 1.5), obstacle="no such device").curves == {}


def test_a_side_that_diverges_has_no_curve_but_a_note() -> None:
    found = curve_of((2.0, float("nan")))
    assert found.curves == {"before": (2.0, 1.0)}
    assert found.notes == ("the loss of after is not finite",)


def test_the_ladder_goes_on_without_a_change_that_breaks_it(tmp_path: Path) -> None:
    outcome = diagnose_here(
        "optimize", "--workload", CLIMBING, "--smoke", "--label", "c", "--reports", tmp_path
    )
    assert "Traceback" not in outcome.err
    assert outcome.code == 3
    assert "diagnose: alone_only failed: " in outcome.err
    record = json.loads((tmp_path / "c" / "optimize.json").read_text())
    assert record["complete"]
    rungs = [(each["facts"]["added"], each["status"]) for each in record["rungs"]]
    assert rungs == [("large", "done"), ("alone_only", "failed"), ("small", "done")]
    assert record["rungs"][2]["title"] == "large + small"
    assert "only works alone" in record["rungs"][1]["reason"]
    assert record["comparisons"][0]["curves"] == {"before": [1.0, 0.5], "after": [1.0, 0.4]}
    assert (tmp_path / "c" / "ladder.svg").exists()
