from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import mean

import pytest
import torch

from bench.dgca import train
from tests.support.dgca_runs import (
    Data,
    make_data,
    read_log,
    read_losses,
    read_tensors,
    refuse,
    start,
)

STEPS = 60
PLAN = ("--max_steps", STEPS, "--save_steps", 25)


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


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
