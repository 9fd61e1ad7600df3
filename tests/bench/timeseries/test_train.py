"""Does training learn, stop in time and refuse bad input, and do the forms compute the same?"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch._inductor import config as inductor

from bench.timeseries import arguments, job, train
from bench.timeseries.epoch import CURVE_POINTS, gradients, loss_curve, open_epoch, read_parts
from bench.timeseries.job import describe_attention, measure
from bench.timeseries.model import AttentionRegressor
from bench.timeseries.settings import Settings
from bench.timeseries.training import (
    Trainer,
    fall_back_to_eager,
    find_amp_obstacle,
    fit,
    make_trainer,
    use_tf32,
)
from bench.timeseries.windows import Parts
from bench.train_command import TrainingFailed
from diagnose.workload import WorkloadError

CPU = torch.device("cpu")
SMALL = Settings(batch_size=64, sequence=7, hidden=16, set_to_none=True)
QUICK = ["--device", "cpu", "--sequence", "7", "--hidden", "8", "--epochs", "2"]


@pytest.fixture(scope="module")
def parts() -> Parts:
    return read_parts(SMALL)


def trainer_of(parts: Parts, seed: int = 0, **changes: object) -> Trainer:
    settings = replace(SMALL, **changes)  # type: ignore[arg-type]
    return make_trainer(settings, len(parts.feature_names), CPU, seed)


def test_the_same_seed_trains_the_same_model(parts: Parts) -> None:
    runs = [
        [each.validation_loss for each in fit(trainer_of(parts, seed), parts, seed, epochs=2)]
        for seed in (0, 0, 1)
    ]
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


def test_training_stops_when_nothing_improves_and_the_best_weights_return(parts: Parts) -> None:
    # A rate so large that later epochs only get worse.
    trainer = trainer_of(parts, learning_rate=0.5)
    seen, weights = [], {}
    for each in fit(trainer, parts, seed=0, epochs=50, patience=2):
        seen.append(each)
        weights[each.epoch] = trainer.model.head.weight.detach().clone()
    best = min(seen, key=lambda each: each.validation_loss)
    assert len(seen) < 50
    assert seen[-1].epoch - best.epoch == 2
    assert all(each.best_epoch <= each.epoch for each in seen)
    assert torch.equal(trainer.model.head.weight, weights[best.epoch])
    assert not torch.equal(weights[best.epoch], weights[seen[-1].epoch])


def test_a_loss_that_is_not_finite_ends_training(parts: Parts) -> None:
    trainer = trainer_of(parts)
    with torch.no_grad():
        trainer.model.head.bias.fill_(math.nan)
    with pytest.raises(TrainingFailed, match="validation loss of epoch 1 is not finite"):
        list(fit(trainer, parts, seed=0, epochs=3))


@pytest.mark.long
def test_what_torch_compile_did_is_told(
    parts: Parts, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    days, targets = zip(*(parts.training[place] for place in range(4)), strict=True)
    batch = [torch.stack(days), torch.stack(targets)]
    traced = trainer_of(parts, compile="default")
    # Traced as for any backend, but run as it is: nothing is built.
    traced.predict = torch.compile(traced.model, backend="eager")
    told = fall_back_to_eager(traced, batch)
    assert told.startswith("torch.compile, mode default: 1 graphs compiled, ")
    assert "the first: Attempted to wrap RNN, GRU, or LSTM" in told
    assert traced.predict is not traced.model

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(inductor.cpp, "cxx", ("no-such-compiler",))
    trainer = trainer_of(parts, compile="default")
    told = fall_back_to_eager(trainer, batch)
    assert told.startswith("torch.compile failed, going on without it: InvalidCxxCompiler")
    assert "\n" not in told
    assert trainer.predict is trainer.model
    assert all(each.grad is None for each in trainer.model.parameters())


# --- the command ---


def run(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int | str | None, str, str]:
    capsys.readouterr()
    code: int | str | None
    try:
        code = train.main(words)
    except SystemExit as ending:  # argparse
        code = ending.code
    said = capsys.readouterr()
    return code, said.out, said.err


def test_the_command_shows_progress_metrics_and_attention(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, err = run([*QUICK, "--accumulate", "2"], capsys)
    assert code == 0
    assert "1461 days, 35 features, 985 / 219 / 220 windows of 7 days" in out
    assert "predicting temp_max of the next day on cpu" in out
    assert err.count("validation loss") == 2
    assert "\ntest: R² " in out
    assert "over 220 days" in out
    assert "\nattention: " in out


def test_the_grid_trains_every_candidate_and_names_the_best(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    full = job.list_candidates(SMALL)
    assert len(set(full)) == 8
    assert {(each.hidden, each.layers) for each in full} == {(128, 2), (128, 3), (256, 2), (256, 3)}
    monkeypatch.setattr(job, "HIDDEN", (4,))
    monkeypatch.setattr(job, "LAYERS", (2,))
    code, out, _ = run([*QUICK, "--grid"], capsys)
    assert code == 0
    lines = [line for line in out.splitlines() if "validation loss" in line]
    losses = {line.partition(":")[0]: float(line.split()[-4]) for line in lines}
    assert len(losses) == 2
    assert f"best: {min(losses, key=lambda name: losses[name])}\n" in out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--epochs", "0"], "'0' is not a whole number of 1 or more"),
        (["--dropout", "1"], "'1' is not 0 or a number below 1"),
        (["--learning-rate", "fast"], "'fast' is not a number between 0 and 1"),
        (["--compile", "fast"], "invalid choice: 'fast'"),
        (["--grid", "--compile"], "would compile 8 models"),
        (["--csv", "no-such.csv"], "no-such.csv cannot be read"),
        (["--device", "abacus"], "device 'abacus' cannot be used; try --device cpu"),
        (["--csv", "short.csv"], "short.csv has 2 days; sequences of 7 days"),
        (["--csv", "short.csv", "--target", "x"], "no column of numbers 'x'; choose one of level"),
    ],
)
def test_what_cannot_be_done_is_refused_in_one_sentence(
    words: list[str],
    sentence: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "short.csv").write_text("day,level\n2020-01-01,1\n2020-01-02,2\n")
    monkeypatch.chdir(tmp_path)
    code, out, err = run([*QUICK, *words], capsys)
    assert (code, out) == (2, "")
    assert err.startswith("train: ")
    assert sentence in err
    assert err.count("\n") == 1


def test_options_become_settings() -> None:
    words = "--layers 3 --batch-size 32 --workers 2 --prefetch 4 --tf32 --compile max-autotune"
    found = arguments.parse(words.split()).settings
    assert (found.layers, found.batch_size, found.workers, found.prefetch) == (3, 32, 2, 4)
    assert (found.tf32, found.amp, found.compile) == (True, False, "max-autotune")
    assert (found.set_to_none, found.hidden) == (True, 128)


# --- the forms of the model, and its metrics ---


def assert_close(first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
    assert first.keys() == second.keys()
    for name in first:
        torch.testing.assert_close(first[name], second[name], rtol=1e-4, atol=1e-6)


def differ(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return any(not torch.allclose(first[name], second[name], rtol=1e-2) for name in first)


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_the_loop_over_cells_is_the_fused_lstm(layers: int) -> None:
    torch.manual_seed(0)
    days = torch.randn(5, 9, 7)
    fused = AttentionRegressor(7, 12, layers, dropout=0.0, fused=True)
    loop = AttentionRegressor(7, 12, layers, dropout=0.0, fused=False)
    loop.load_state_dict(fused.state_dict())
    outputs = []
    for model in (fused, loop):
        predictions, weights = model.attend(days)
        predictions.square().sum().backward()  # type: ignore[no-untyped-call]
        outputs.append({"predictions": predictions.detach(), "weights": weights.detach()})
    assert_close(*outputs)
    torch.testing.assert_close(weights.sum(dim=1), torch.ones(5))
    assert_close(
        *({n: p.grad for n, p in m.named_parameters() if p.grad is not None} for m in (fused, loop))
    )
    assert all(each.grad is not None for each in loop.parameters())


def test_the_loop_drops_between_layers_in_training_only() -> None:
    torch.manual_seed(0)
    model = AttentionRegressor(7, 12, 2, dropout=0.5, fused=False)
    days = torch.randn(5, 9, 7)
    assert not torch.equal(model(days), model(days))
    model.eval()
    assert torch.equal(model(days), model(days))


@pytest.mark.parametrize(
    ("part", "whole"),
    # Of the 985 training windows the last group of four is 300 + 300 + 300 + 85.
    [(64, 256), (300, 985)],
)
def test_four_small_batches_have_the_gradients_of_the_big_one(part: int, whole: int) -> None:
    """And not those of one of their own, which a wrong proof would also call equal."""
    accumulated = gradients(replace(SMALL, batch_size=part, accumulate=4), CPU, seed=1)
    assert_close(accumulated, gradients(replace(SMALL, batch_size=whole), CPU, seed=1))
    assert differ(accumulated, gradients(replace(SMALL, batch_size=part), CPU, seed=1))


def test_curves_cover_the_same_windows_whatever_the_batch() -> None:
    samples = 320
    # So small a rate that nothing is learnt: the losses are those of the windows themselves.
    frozen = replace(SMALL, dropout=0.0, learning_rate=1e-12)
    curves = [
        loss_curve(replace(frozen, batch_size=batch), CPU, 1, samples) for batch in (32, 50, 320)
    ]
    assert [len(curve) for curve in curves] == [CURVE_POINTS] * 3
    for curve in curves[1:]:
        assert curve == pytest.approx(curves[0], rel=1e-4)
    learning = loss_curve(SMALL, CPU, 1, 3000)  # three epochs
    assert learning[-1] < 0.5 * learning[0]


def test_a_processor_without_a_bfloat16_lstm_is_told_so() -> None:
    obstacle = find_amp_obstacle(CPU, fused_lstm=True)
    fused = replace(SMALL, amp=True)
    if obstacle:
        with pytest.raises(WorkloadError, match="mixed precision cannot be used: oneDNN has no"):
            gradients(fused, CPU, seed=1)
    else:
        assert all(each.isfinite().all() for each in gradients(fused, CPU, seed=1).values())
    assert find_amp_obstacle(CPU, fused_lstm=False) == ""


def test_tf32_is_as_asked_while_open_and_as_before_afterwards() -> None:
    backends = torch.backends.cuda.matmul, torch.backends.cudnn
    before = [each.allow_tf32 for each in backends]
    for wanted in (False, True):
        with use_tf32(wanted):
            assert [each.allow_tf32 for each in backends] == [wanted, wanted]
    assert [each.allow_tf32 for each in backends] == before


def test_tf32_of_one_epoch_does_not_reach_another_that_is_open(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []
    monkeypatch.setattr(
        "bench.timeseries.epoch.predict_all",
        lambda *_: seen.append(torch.backends.cuda.matmul.allow_tf32),
    )
    with (
        open_epoch(SMALL, CPU, 1, parts) as before,
        open_epoch(replace(SMALL, tf32=True), CPU, 1, parts) as after,
    ):
        before.evaluate()
        after.evaluate()
        before.evaluate()
    assert seen == [False, True, False]


def test_metrics_against_numbers_worked_out_by_hand() -> None:
    # Errors 1, -1, 0, 2 around targets of mean 5 and squared spread 9 + 1 + 1 + 9 = 20.
    found = measure(torch.tensor([2.0, 4.0, 6.0, 8.0]), torch.tensor([3.0, 3.0, 6.0, 10.0]))
    assert found.r2 == pytest.approx(1 - 6 / 20)
    assert found.rmse == pytest.approx(math.sqrt(6 / 4))
    assert found.mae == pytest.approx(1.0)
    assert found.mape == pytest.approx((1 / 2 + 1 / 4 + 0 + 2 / 8) / 4)
    assert (found.days, found.undefined) == (4, {})
    assert str(found) == "R² 0.700  RMSE 1.22  MAE 1  MAPE 25.0%  over 4 days"


def test_metrics_that_do_not_exist_say_why() -> None:
    constant = measure(torch.full((3,), 7.3), torch.tensor([7.0, 7.3, 8.3]))
    assert constant.r2 is None
    assert constant.undefined == {"r2": "the target is 7.3 on every day"}
    assert str(constant).startswith("R² – (the target is 7.3 on every day)  RMSE")
    zero = measure(torch.tensor([0.0, 1.0, -1.0]), torch.zeros(3))
    assert zero.mape is None
    assert zero.r2 == pytest.approx(0.0)
    assert zero.undefined == {"mape": "the target is 0 on 1 day"}


def test_the_days_with_most_attention_are_named_from_the_last_one() -> None:
    told = describe_attention(torch.tensor([0.05, 0.15, 0.3, 0.5]))
    assert told == "the last day 50%, 1 day before it 30%, 2 days before it 15%"
