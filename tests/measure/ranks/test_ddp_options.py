"""Does every option of data parallelism do what its row says? Two real gloo ranks try them once;
the tests look at what they saw.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from diagnose.measure.clock import SMOKE
from diagnose.measure.ranks.job.member import Member
from diagnose.measure.ranks.job.supervise import run_locally
from diagnose.measure.ranks.scaling.ddp_trials import Trials, WayFacts, compare_ways
from diagnose.measure.ranks.scaling.options import (
    DEFAULT,
    EXPERIMENTS,
    KEYS,
    After,
    Experiment,
    Way,
    select,
)
from diagnose.measure.ranks.scaling.replica import (
    FLOAT16_SCALE,
    BucketLog,
    LossOf,
    RankLab,
    Replica,
    find_unused,
)
from diagnose.records.header import Reading
from diagnose.workload import Network, Size

RANKS, BATCH, WIDTH, LAYERS = 2, 4, 512, 4
# Each layer is a bucket of its own at 1 MiB.
SMALL = 1
EVERY = Way("every pass", passes=4, bucket_cap_mb=SMALL)
WAYS = {
    "usual": Way("usual", bucket_cap_mb=SMALL),
    "default": DEFAULT,
    "whole": Way("one bucket", bucket_cap_mb=100),
    "every": EVERY,
    "correct": replace(EVERY, no_sync="forward and backward"),
    "published": replace(EVERY, no_sync="backward"),
    "quarters": Way(
        "4 x b/4", passes=4, split=4, no_sync="forward and backward", bucket_cap_mb=100
    ),
    "view": Way("view", bucket_cap_mb=SMALL, bucket_view=True),
    "static": Way("static", bucket_cap_mb=SMALL, static_graph=True),
    "float16": Way("float16", bucket_cap_mb=SMALL, compress="float16"),
    "searching": Way("searching", bucket_cap_mb=SMALL, find_unused=True),
    "zero": Way("zero", shard="optimizer"),
    "fsdp2": Way("fsdp2", shard="model"),
}
Sights = list[dict[str, Any]]  # [rank][way]
TRIED = (
    Experiment(WAYS["usual"], (After("view", "", WAYS["view"]), After("whole", "", WAYS["whole"]))),
    Experiment(
        WAYS["correct"], (After("static", "", replace(WAYS["correct"], static_graph=True)),)
    ),
)


def build() -> LossOf:
    torch.manual_seed(0)
    layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)])
    return LossOf(Network(build=lambda size: layers, loss=loss), layers)


def loss(model: nn.Module, batch: Any) -> Tensor:
    assert isinstance(model, nn.ModuleList)
    for layer in model:
        batch = layer(batch)
    result: Tensor = batch.square().mean()
    return result


def own_batches(rank: int, count: int, batch_size: int) -> list[Tensor]:
    """The samples of one rank, however they are divided."""
    generator = torch.Generator().manual_seed(rank)
    rows = torch.randn(count * batch_size, WIDTH, generator=generator)
    return [rows[at : at + batch_size] for at in range(0, len(rows), batch_size)]


def run(member: Member, request: Mapping[str, Any]) -> None:
    """One rank: tries every way and writes down what it saw."""
    world = dist.group.WORLD
    assert world is not None
    lab = RankLab(
        build=build,
        batches=lambda count, size: own_batches(member.rank, count, size),
        batch_size=BATCH,
        seed=0,
        group=world,
    )
    seen: dict[str, Any] = {name: look_at(lab, way) for name, way in WAYS.items()}
    groups = count_groups()
    trials = Trials(member, lab, replace(SMOKE, limit_seconds=1.0))
    seen["tried"] = [row for each in TRIED for row in trials.run(each)]
    seen["groups left"] = count_groups() - groups
    # Whatever state a crash left behind, the other ranks can still be talked to.
    alive = torch.ones(1)
    dist.all_reduce(alive)
    seen["ranks after"] = float(alive)
    torch.save(seen, Path(request["folder"]) / f"rank{member.rank}.pt")


def look_at(lab: RankLab, way: Way) -> dict[str, Any]:
    log = BucketLog()
    counted = Replica(lab, way, log=log)
    for _ in range(2):
        counted.step()
    log.clear()
    counted.step()
    nbytes = list(log.nbytes)
    replica = Replica(lab, way, learning_rate=1e-3)
    return {
        "nbytes": nbytes,
        "held": counted.held_bytes(),
        "idle": counted.updates(),
        "gradients": None if way.shard else replica.gradients(),
        "updates": replica.updates(),
        "samples": replica.samples_per_step,
    }


def count_groups() -> int:
    return len(dist.distributed_c10d._world.pg_map)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Sights:
    """What two ranks saw of every way."""
    folder = tmp_path_factory.mktemp("ranks")
    request = {"device": "cpu", "folder": str(folder)}
    outcome = run_locally(RANKS, __name__, request, lambda kind, content: None, timeout=120)
    assert outcome.cause is None, outcome.sentence
    return [torch.load(folder / f"rank{rank}.pt", weights_only=False) for rank in range(RANKS)]


def expected_gradients(passes: int) -> Tensor:
    """Of all samples of all ranks at once, without any distribution."""
    one = build()
    batches = [own_batches(rank, passes, BATCH) for rank in range(RANKS)]
    torch.autograd.backward(one(torch.cat([row for rows in batches for row in rows])))
    grads = [each.grad for each in one.parameters() if each.grad is not None]
    return torch.cat([each.reshape(-1) for each in grads])


def assert_close(found: Tensor, expected: Tensor, tolerance: float = 1e-4) -> None:
    unit = expected.square().mean().sqrt()
    torch.testing.assert_close(found / unit, expected / unit, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("name", "passes"),
    [
        *((name, 4) for name in ("every", "correct", "published")),
        *((name, 1) for name in ("usual", "whole", "quarters", "view", "static", "searching")),
    ],
)
def test_gradients_are_those_of_one_large_batch_on_every_rank(
    seen: Sights, name: str, passes: int
) -> None:
    for rank in range(RANKS):
        assert_close(seen[rank][name]["gradients"], expected_gradients(passes))


def test_every_exchange_carries_all_gradients_and_only_the_correct_form_has_fewer(
    seen: Sights,
) -> None:
    gradients = LAYERS * WIDTH * WIDTH * 4
    nbytes = {name: seen[0][name]["nbytes"] for name in WAYS}
    layers = [gradients // LAYERS] * LAYERS
    assert nbytes["usual"] == nbytes["static"] == nbytes["correct"] == layers
    assert nbytes["every"] == nbytes["published"] == layers * 4
    assert nbytes["whole"] == [gradients]
    # torch's own choice: a first bucket of 1 MiB, which is one layer, then one for the rest.
    assert nbytes["default"] == [gradients // LAYERS, gradients * 3 // LAYERS]
    # Dividing the batch exchanges as much per sample.
    assert nbytes["quarters"] == [gradients]
    assert seen[0]["whole"]["samples"] == seen[0]["quarters"]["samples"] == BATCH


def test_a_view_into_the_buckets_saves_exactly_the_gradients(seen: Sights) -> None:
    gradients = LAYERS * WIDTH * WIDTH * 4
    assert seen[0]["usual"]["held"] - seen[0]["view"]["held"] == gradients
    assert seen[0]["static"]["held"] == seen[0]["usual"]["held"]


@pytest.mark.parametrize("name", ["zero", "fsdp2"])
def test_dividing_the_state_moves_the_weights_alike_and_holds_less(seen: Sights, name: str) -> None:
    for rank in range(RANKS):
        torch.testing.assert_close(
            seen[rank][name]["updates"], seen[rank]["whole"]["updates"], rtol=0, atol=1e-2
        )
    held = [seen[rank][name]["held"] for rank in range(RANKS)]
    assert sum(held) < RANKS * seen[0]["whole"]["held"]


def test_compression_changes_the_gradients_a_little(seen: Sights) -> None:
    found = seen[0]["float16"]["gradients"]
    assert not torch.equal(found, seen[0]["usual"]["gradients"])
    assert_close(found, expected_gradients(1), tolerance=1e-2)
    assert torch.equal(found, seen[1]["float16"]["gradients"])


def test_a_step_that_is_timed_changes_no_weight(seen: Sights) -> None:
    for name in WAYS:
        assert not seen[0][name]["idle"].any(), name
        assert seen[0][name]["updates"].any(), name


def test_an_option_that_crashes_is_a_row_and_the_ranks_go_on(seen: Sights) -> None:
    for rank in range(RANKS):
        timed, also_timed, crashed = seen[rank]["tried"]
        assert (timed.key, timed.status, timed.after.samples_per_step) == ("view", "done", BATCH)
        assert also_timed.status == "done"
        assert (crashed.key, crashed.status, crashed.after) == ("static", "failed", None)
        assert "expect_autograd_hooks_" in crashed.reason
        assert seen[rank]["ranks after"] == RANKS


def test_every_group_ends_with_its_trial(seen: Sights) -> None:
    assert [each["groups left"] for each in seen] == [0] * RANKS


def test_a_batch_that_cannot_be_divided_is_refused() -> None:
    lab = RankLab(build, lambda count, size: [], 6, 0, group=None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="a batch of 6 cannot be divided by 4"):
        Replica(lab, WAYS["quarters"])


def test_parameters_without_a_gradient_are_found() -> None:
    whole = build()
    whole.unused = nn.Linear(2, 2)
    assert find_unused(whole, torch.ones(1, WIDTH)) == ["unused.weight", "unused.bias"]
    assert all(each.grad is None for each in whole.parameters())


def test_a_loss_in_float16_is_scaled() -> None:
    """Its small gradients would vanish, and a proof of equal gradients would compare zeros."""
    network = Network(build=lambda size: nn.Linear(4, 4), loss=lambda model, x: model(x).mean())
    model, batch = network.build(Size(1)), torch.full((2, 4), 1e-6)
    plain, scaled = LossOf(network, model), LossOf(network, model, torch.float16)
    assert scaled(batch).item() == pytest.approx(FLOAT16_SCALE * plain(batch).item(), rel=1e-2)


def test_a_loss_that_is_no_tensor_is_refused() -> None:
    network = Network(build=lambda size: nn.Linear(1, 1), loss=lambda model, batch: 3)  # type: ignore[arg-type,return-value]
    with pytest.raises(TypeError, match="returned a int; it must return one tensor"):
        LossOf(network, network.build(Size(1)))(None)


# --- the catalogue and the judgement ---


def test_accumulation_keeps_the_micro_batch_and_is_also_tried_as_published() -> None:
    for key in ("accumulate_2", "accumulate_4"):
        (experiment,) = select((key,))
        forms = {after.form: after.way for after in experiment.afters}
        assert set(forms) == {"after", "as published"}
        for way in (experiment.before, *forms.values()):
            assert (way.split, way.passes) == (1, int(key[-1]))


def test_a_selection_keeps_the_order_and_only_what_was_asked_for() -> None:
    chosen = select(("bucket_cap_200", "accumulate_2"))
    assert [[after.key for after in each.afters] for each in chosen] == [
        ["accumulate_2", "accumulate_2"],
        ["bucket_cap_200"],
    ]
    assert select(KEYS) == EXPERIMENTS


def looked_at(gradients: Tensor, spread: float = 0.0) -> WayFacts:
    return WayFacts({"gradients": gradients}, {"gradients": spread}, (), 0, Reading(1.0))


GRADIENTS = torch.linspace(-1, 1, 101)
CHANGE = After("key", "title", DEFAULT)


@pytest.mark.parametrize("scale", [1.0, 1e-9])
def test_other_gradients_are_not_equal_however_small_they_are(scale: float) -> None:
    before = looked_at(scale * GRADIENTS)
    same = compare_ways(before, looked_at(scale * GRADIENTS * (1 + 1e-6)), CHANGE)
    assert all(check.equal for check in same.checks)
    other = compare_ways(before, looked_at(scale * GRADIENTS * 1.01), CHANGE)
    assert [check.equal for check in other.checks] == [False, True]


@pytest.mark.parametrize("spread", [0.1, float("inf"), float("nan")])
def test_ranks_that_disagree_are_not_equal(spread: float) -> None:
    found = compare_ways(looked_at(GRADIENTS), looked_at(GRADIENTS, spread), CHANGE)
    assert [check.equal for check in found.checks] == [True, False]
