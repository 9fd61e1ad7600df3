"""Does training learn, stop in time, and refuse bad input in one sentence?"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch._inductor import config as inductor

from bench.timeseries import arguments, job, train
from bench.timeseries.epoch import read_parts
from bench.timeseries.settings import Settings
from bench.timeseries.training import Trainer, fall_back_to_eager, fit, make_trainer
from bench.timeseries.windows import Parts
from bench.train_command import TrainingFailed

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
