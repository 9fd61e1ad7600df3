"""The experiment engine on optimisations of a few lines, whose truth is known."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

from bench.optimizations.catalogue import OPTIMIZATIONS
from diagnose.analyze.optimize.experiment import judge
from diagnose.measure.clock import SMOKE
from diagnose.measure.machine.device import open_device
from diagnose.measure.optimize.equality import compare_outcomes
from diagnose.measure.optimize.experiment import (
    LARGEST_FAMILY,
    MOST_BLOCKS,
    Bench,
    decided_rule,
    run_experiments,
)
from diagnose.measure.optimize.optimizer import EXPERIMENT_KEYS, choose
from diagnose.measure.session import Refused
from diagnose.records.experiments import Comparison
from diagnose.records.header import Reading
from diagnose.records.sequential import fewest_blocks
from diagnose.workload import Lab, Optimization, Side, Size, Trial
from tests.support.records.parts import machine

CPU = torch.device("cpu")
LAB = Lab(CPU, Size(2), seed=3)


def bench() -> Bench:
    return Bench(LAB, open_device("cpu"), replace(SMOKE, limit_seconds=5.0))


def side(
    value: float,
    step: Callable[[], object] = lambda: None,
    parameters: Callable[[], list[torch.Tensor]] | None = None,
) -> Side:
    @contextmanager
    def trial(lab: Lab) -> Iterator[Trial]:
        yield Trial(step, 2, parameters)

    def outcome(lab: Lab) -> Mapping[str, torch.Tensor]:
        return {"per sample output": torch.tensor([[1.0], [value]]), "drawn": torch.rand(1)}

    return Side(f"gives {value}", outcome, {"forward": trial})


def run(after: Side, before: Side | None = None, **options: object) -> list[Comparison]:
    made = Optimization("x", "X", before or side(1.0), after, **options)  # type: ignore[arg-type]
    return list(run_experiments(made, bench()))


def test_equal_sides_are_timed_in_blocks_of_three() -> None:
    (made,) = run(side(1.0))
    assert made.equality is not None
    assert all(check.equal for check in made.equality.checks), "both drew from the same seed"
    assert made.before is not None
    assert made.control is not None
    assert made.after is not None
    blocks = {len(m.timing.slot_seconds) for m in (made.before, made.control, made.after)}
    assert len(blocks) == 1
    assert fewest_blocks() <= blocks.pop() <= MOST_BLOCKS


def test_a_different_result_is_never_timed() -> None:
    ran: list[int] = []
    (made,) = run(side(1.5, lambda: ran.append(1)))
    assert ran == []
    assert made.before is made.after is None
    assert judge(made, machine()).verdict == "NOT_EQUAL"
    assert made.equality is not None
    (check,) = [each for each in made.equality.checks if not each.equal]
    assert (check.worst, check.differing_samples, check.samples) == (0.25, 1, 2)


def test_numbers_that_may_change_are_shown_and_timed() -> None:
    (made,) = run(side(1.5), claims_equality=False)
    assert made.equality is not None
    assert made.equality.claim == "not claimed"
    assert made.after is not None


def test_a_side_that_changes_its_parameters_is_invalid() -> None:
    weight = torch.zeros(1)
    (made,) = run(side(1.0, lambda: weight.add_(1), lambda: [weight]))
    assert made.status == "invalid"
    assert made.reason == "the side 'after' changed its parameters while it was timed"


class Loading:
    """A step that takes 4 ms, of which it says that it waited for some; the first longer."""

    def __init__(self, share: float) -> None:
        self.share, self.waited, self.steps = share, 0.0, 0

    def step(self) -> None:
        seconds = 0.004
        time.sleep(seconds)
        self.steps += 1
        self.waited += 100.0 if self.steps == 1 else self.share * seconds

    def side(self) -> Side:
        @contextmanager
        def trial(lab: Lab) -> Iterator[Trial]:
            yield Trial(self.step, 2, waited=lambda: self.waited)

        return replace(side(1.0), trials={"forward": trial})


def test_the_wait_for_data_is_counted_within_the_slots_of_each_side() -> None:
    (made,) = run(Loading(0.0).side(), Loading(0.5).side())
    assert 0.3 < float(made.facts["before_data_wait_share"] or 0) <= 0.5, "without the first step"
    assert made.facts["after_data_wait_share"] == 0.0
    (without,) = run(side(1.0), Loading(0.5).side())
    assert without.facts == {}, "one side has no loader to wait for"


def test_memory_of_other_processes_is_unknown() -> None:
    @contextmanager
    def trial(lab: Lab) -> Iterator[Trial]:
        yield Trial(lambda: torch.zeros(1000), 2, in_this_process=False)

    (made,) = run(replace(side(1.0), trials={"forward": trial}), side(1.0))
    assert made.after is not None
    assert made.before is not None
    assert made.after.peak_bytes == Reading(None, "other processes do the work")
    assert made.before.peak_bytes.value == 0.0


def test_what_does_not_apply_is_skipped_with_its_reason() -> None:
    (made,) = run(side(1.0), obstacle=lambda lab: "no compiler")
    assert (made.status, made.reason) == ("skipped", "no compiler")


def test_every_published_form_is_judged_in_its_own_condition() -> None:
    seen: list[str] = []

    def outcome(lab: Lab) -> Mapping[str, torch.Tensor]:
        seen.append(lab.condition)
        return {"x": torch.zeros(1)}

    before = replace(side(1.0), outcome=outcome)
    published = replace(before, condition="constant lengths")
    made = run(before, before, published=(published,))
    assert [each.form for each in made] == ["after", "as published"]
    assert seen == ["real data", "real data", "constant lengths", "constant lengths"]


STEADY, WILD = [1.0] * 12, [1.0 + 0.3 * (i % 2) for i in range(12)]


@pytest.mark.parametrize(
    ("most_blocks", "afters", "unmet"),
    [
        (MOST_BLOCKS, [[0.8] * 12], [""]),
        (MOST_BLOCKS, [WILD], ["undecided"]),
        (12, [WILD], [""]),
        (
            MOST_BLOCKS,
            [[each / 10 for each in WILD]],
            [""],
        ),  # large is enough
        (MOST_BLOCKS, [[0.8] * 12, WILD], ["", "undecided"]),
    ],
)
def test_the_rule_stops_when_every_change_is_decided(
    most_blocks: int, afters: list[list[float]], unmet: list[str]
) -> None:
    before, control, *found = decided_rule(most_blocks)([STEADY, STEADY, *afters])
    assert before == control == max(found)
    assert [each[:9] for each in found] == unmet


def test_a_gain_must_be_provable_among_all_experiments() -> None:
    needed = fewest_blocks(LARGEST_FAMILY)
    for count, is_open in ((needed - 1, True), (needed, False)):
        found = decided_rule()([[1.0] * count, [1.0] * count, [0.5] * count])
        assert any(found) is is_open


def test_the_command_line_knows_the_whole_catalogue() -> None:
    assert tuple(each.key for each in OPTIMIZATIONS) == EXPERIMENT_KEYS
    assert choose("dgca", EXPERIMENT_KEYS, None) == EXPERIMENT_KEYS
    chosen = choose("dgca", EXPERIMENT_KEYS, ["gated_fusion", "apply_prompt"])
    assert chosen == ("apply_prompt", "gated_fusion")
    assert choose("t", ("a", "b"), ["b"], parts=("b", "c")) == ("b",), "tried once, also if a part"
    with pytest.raises(Refused, match="has no optimization 'x'; it has apply_prompt"):
        choose("dgca", EXPERIMENT_KEYS, ["x"])


@pytest.mark.parametrize(
    ("after", "remark"),
    [
        ({"x": torch.zeros(2)}, "shapes"),
        ({"x": torch.full((3,), torch.nan)}, "not finite"),
        ({}, "missing on the side 'after'"),
    ],
)
def test_what_cannot_be_subtracted_differs(after: dict[str, torch.Tensor], remark: str) -> None:
    (check,) = compare_outcomes({"x": torch.zeros(3)}, after, 1.0).checks
    assert not check.equal
    assert check.worst is None
    assert remark in check.remark


def test_equal_infinities_do_not_differ() -> None:
    same = {"x": torch.tensor([torch.inf, torch.nan])}
    assert compare_outcomes(same, same, 0.0).checks[0].equal
