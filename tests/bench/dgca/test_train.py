"""Does a training run learn, stop, go on bit by bit, and refuse to mix with another?"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import mean

import pytest
import torch
from torch import Tensor, nn

from bench.data.tensors import IGNORED
from bench.dgca import train
from bench.dgca.config import DGCAConfig
from bench.dgca.job import require_agreement
from bench.dgca.model import DGCA
from bench.dgca.ranks import Ranks
from bench.dgca.rows import Order
from bench.dgca.state import start_training
from bench.dgca.trainer import (
    Objective,
    accumulate_gradients,
    apply_gradients,
    note,
    require_progress,
)
from bench.dgca.workload import SIZES
from bench.train_command import TrainingFailed
from tests.support.dgca_runs import (
    Data,
    make_data,
    read_log,
    read_losses,
    read_tensors,
    refuse,
    start,
)

pytestmark = pytest.mark.long

STEPS = 60
PLAN = ("--max_steps", STEPS, "--save_steps", 25)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Data:
    return make_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def whole(data: Data, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing interrupts."""
    output = tmp_path_factory.mktemp("runs") / "whole"
    assert train.main(data.training(output, *PLAN)) == 0
    return output


def test_resuming_ends_bit_by_bit_where_the_whole_run_ends(
    whole: Path, data: Data, tmp_path: Path
) -> None:
    torch.manual_seed(1)  # whatever the new process has drawn before
    assert train.main(data.training(tmp_path, *PLAN, "--resume", whole / "step-50")) == 0
    expected = read_losses(whole)
    first, last = list(expected.values())[:15], list(expected.values())[-15:]
    assert mean(last) < 0.8 * mean(first), "it learns from real sentences"
    assert read_losses(tmp_path) == {step: expected[step] for step in range(51, STEPS + 1)}
    assert read_tensors(tmp_path / "step-60") == read_tensors(whole / "step-60")
    assert (tmp_path / "latest").read_text() == "step-60\n"


def test_evaluation_changes_nothing(
    whole: Path, data: Data, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = data.training(tmp_path, *PLAN, "--resume", whole / "step-50", "--do_eval", "--do-test")
    words += ["--preprocessed_eval", str(data.file("dev")), "--eval_steps", "4"]
    assert train.main([*words, "--preprocessed-test", str(data.file("test"))]) == 0
    assert read_tensors(tmp_path / "step-60") == read_tensors(whole / "step-60")
    evaluated = [
        (each["step"], name)
        for each in read_log(tmp_path)
        for name in each
        if name in ("eval", "test")
    ]
    assert evaluated == [(52, "eval"), (56, "eval"), (60, "eval"), (60, "test")]
    out = capsys.readouterr().out
    assert "test at step 60: P " in out
    assert "over 40 sentences" in out


def test_ctrl_c_saves_and_the_run_can_go_on(whole: Path, data: Data, tmp_path: Path) -> None:
    words = data.training(tmp_path, *PLAN, "--num_workers", 1)
    process = start("-m", "bench.dgca.train", *words)
    deadline = time.monotonic() + 100
    while not (tmp_path / "log.jsonl").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert err.strip().splitlines()[-1] == "train: interrupted; go on with --resume"
    assert "Traceback" not in err
    stopped = int((tmp_path / "latest").read_text().strip().removeprefix("step-"))
    assert max(read_losses(tmp_path)) == stopped < STEPS

    assert train.main(data.training(tmp_path, *PLAN, "--resume")) == 0
    assert read_losses(tmp_path) == read_losses(whole)
    assert read_tensors(tmp_path / "step-60") == read_tensors(whole / "step-60")


def test_two_processes_train_one_model(
    data: Data, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = data.training(tmp_path, "--max-steps", 2, "--gradient-accumulation-steps", 2)
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    process = start(*torchrun, "bench/dgca/train.py", *words)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert "8 rows per step (processes 2, micro-batches 2 of 2)" in out
    assert "2 steps of 8 rows, 0 skipped, 0 losses not finite" in out
    assert json.loads((tmp_path / "step-2" / "state.json").read_text())["recipe"]["processes"] == 2
    assert sorted(read_losses(tmp_path)) == [1, 2]
    words.append("--resume")
    assert "was trained with processes 2, this run has 1" in refuse(words, capsys)
    looking = ["--do_eval", "--preprocessed_eval", str(data.file("dev"))]
    assert train.main([*words[1:], *looking]) == 0, "evaluating needs no second process"


def test_both_forms_train_alike(data: Data, tmp_path: Path) -> None:
    more = ("--max_steps", 2, "--gradient_accumulation_steps", 2, "--preload_data")
    losses = {}
    for form in ("original", "optimised"):
        assert train.main(data.training(tmp_path / form, "--form", form, *more)) == 0
        losses[form] = list(read_losses(tmp_path / form).values())
    assert losses["original"] == pytest.approx(losses["optimised"], rel=1e-4)


def test_half_precision_without_prompts_or_masks(data: Data, tmp_path: Path) -> None:
    words = data.training(tmp_path, "--max_steps", 2, "--fp16")
    assert train.main([each for each in words if each not in ("--apply_prompt", "--mft")]) == 0
    recipe = json.loads((tmp_path / "step-2" / "state.json").read_text())["recipe"]
    assert (recipe["fp16"], recipe["apply_prompt"], recipe["mft"]) == (True, False, False)


def test_a_run_is_not_mixed_with_another(
    whole: Path, data: Data, capsys: pytest.CaptureFixture[str]
) -> None:
    before = read_tensors(whole / "step-60")
    for more, complaint in (
        ((), "already holds checkpoints"),
        (("--resume", "--seed", "7"), "trained with seed 42, this run has 7"),
        (("--resume", "--train_batch_size", "8"), "trained with micro_batch 4, this run has 8"),
        (("--resume", "--preprocessed_train", data.file("dev")), "trained with training_data"),
    ):
        assert complaint in refuse(data.training(whole, *PLAN, *more), capsys)
    assert read_tensors(whole / "step-60") == before


CPU = torch.device("cpu")


class Disagreeing(Ranks):
    """Two processes of which the other one holds something else."""

    def gather(self, value: object) -> list[object]:
        return [value, f"not {value}"]


class Agreeing(Ranks):
    def gather(self, value: object) -> list[object]:
        return [value, value]


def test_processes_that_drift_apart_are_noticed() -> None:
    require_agreement(Agreeing(world=2), nn.Linear(1, 1))
    with pytest.raises(TrainingFailed, match="different parameters"):
        require_agreement(Disagreeing(world=2), nn.Linear(1, 1))


def pick_rows_with_equal_counts(tensors: Mapping[str, Tensor], count: int) -> dict[str, Tensor]:
    """Every term of the loss is a mean over its own places: as many in each of these rows."""
    labels = tensors["labels"]
    ranked = (tensors["candidate_ids"] == labels.unsqueeze(-1)).any(-1).sum(1)
    facts = torch.stack([(labels != IGNORED).sum(1), ranked], dim=1)
    _, kind_of_row, sizes = torch.unique(facts, dim=0, return_inverse=True, return_counts=True)
    rows = (kind_of_row == sizes.argmax()).nonzero().squeeze(1)[:count]
    assert len(rows) == count
    return {name: tensor[rows] for name, tensor in tensors.items()}


def test_accumulated_gradients_are_those_of_the_large_batch(tmp_path: Path) -> None:
    data = make_data(tmp_path)
    tensors = pick_rows_with_equal_counts(torch.load(data.file("train"), weights_only=True), 8)
    torch.manual_seed(3)
    model = DGCA(DGCAConfig.from_size(SIZES["tiny"])).eval()  # dropout would draw differently
    objective = Objective(model, model.config)
    off = torch.amp.GradScaler("cpu", enabled=False)

    def collect(parts: int) -> tuple[Tensor, list[Tensor]]:
        objective.zero_grad()
        chunks = {name: tensor.chunk(parts) for name, tensor in tensors.items()}
        batches = [{name: chunks[name][part] for name in chunks} for part in range(parts)]
        loss = accumulate_gradients(objective, batches, off, half=False)
        return loss, [each.grad.clone() for each in model.parameters() if each.grad is not None]

    (large_loss, large), (small_loss, small) = collect(1), collect(4)
    assert len(large) == len(list(model.parameters()))
    assert max(float(each.abs().max()) for each in large) > 1e-3
    torch.testing.assert_close(small_loss, large_loss, rtol=0, atol=2e-5)
    for one, other in zip(small, large, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)


def test_every_epoch_visits_every_row_once_and_no_row_is_shared() -> None:
    plans = [
        Order(rows=25, micro_batch=2, accumulation=2, seed=1, rank=rank, world=2, end_step=6)
        for rank in (0, 1)
    ]
    assert plans[0].steps_per_epoch == 3
    first = [row for plan in plans for batch in list(plan)[:6] for row in batch]
    assert len(set(first)) == len(first) == 24
    second = [row for plan in plans for batch in list(plan)[6:] for row in batch]
    assert len(set(second)) == 24
    assert second != first


def test_an_order_can_be_entered_anywhere() -> None:
    whole_order = list(Order(rows=25, micro_batch=2, accumulation=3, seed=1, end_step=20))
    for step in (1, 4, 5, 19):
        rest = Order(rows=25, micro_batch=2, accumulation=3, seed=1, first_step=step, end_step=20)
        assert list(rest) == whole_order[step * 3 :]


def test_a_step_that_is_not_finite_is_skipped_and_counted() -> None:
    state = start_training(nn.Linear(2, 1), 0.1, half=False, fused=False, device=CPU)
    before = [each.clone() for each in state.model.parameters()]
    for each in state.model.parameters():
        each.grad = torch.full_like(each, torch.nan)
    state.step = 1
    note(state, [float("inf")], [float(apply_gradients(state, 0.1))])
    assert (state.skipped_steps, state.nonfinite_losses) == (1, 1)
    for one, other in zip(state.model.parameters(), before, strict=True):
        assert torch.equal(one, other)
    with pytest.raises(TrainingFailed, match="all 1 steps were not finite"):
        require_progress(state)
    state.step = 2
    require_progress(state)
