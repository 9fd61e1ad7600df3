"""Does training learn, stop in time, and refuse bad input in one sentence?"""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path

import pytest
import torch
from torch._inductor import config as inductor

from bench.timeseries import arguments, grid, train
from bench.timeseries.compiling import fall_back_to_eager
from bench.timeseries.epoch import open_epoch, read_parts
from bench.timeseries.settings import Settings
from bench.timeseries.training import fit, make_trainer
from bench.timeseries.windows import Parts
from bench.train_command import TrainingFailed

ROOT = Path(__file__).parents[3]
CPU = torch.device("cpu")
SMALL = Settings(batch_size=64, sequence=7, hidden=16, set_to_none=True)
QUICK = ["--device", "cpu", "--sequence", "7", "--hidden", "8", "--epochs", "2"]


@pytest.fixture(scope="module")
def parts() -> Parts:
    return read_parts(SMALL)


def test_the_loss_falls_on_real_weather() -> None:
    with open_epoch(SMALL, CPU, seed=0) as epoch:
        assert epoch.samples == 985
        losses = [epoch.train() for _ in range(6)]
        epoch.step()
    assert losses[-1] < 0.4 * losses[0]


def test_the_same_seed_trains_the_same_model(parts: Parts) -> None:
    runs = []
    for seed in (0, 0, 1):
        trainer = make_trainer(SMALL, len(parts.feature_names), CPU, seed)
        runs.append([each.validation_loss for each in fit(trainer, parts, seed, epochs=2)])
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


def test_training_stops_when_nothing_improves_and_the_best_weights_return(parts: Parts) -> None:
    # A rate so large that later epochs only get worse.
    wild = replace(SMALL, learning_rate=0.5)
    trainer = make_trainer(wild, len(parts.feature_names), CPU, seed=0)
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
    trainer = make_trainer(SMALL, len(parts.feature_names), CPU, seed=0)
    with torch.no_grad():
        trainer.model.head.bias.fill_(math.nan)
    with pytest.raises(TrainingFailed, match="validation loss of epoch 1 is not finite"):
        list(fit(trainer, parts, seed=0, epochs=3))
    reason = train.explain(TrainingFailed("no"))
    assert reason == "no"
    assert "--accumulate" in str(train.explain(torch.OutOfMemoryError("CUDA out")))
    assert train.explain(ValueError("a fault of ours")) is None


def test_the_grid_has_eight_candidates_and_each_is_trained(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = grid.list_candidates(SMALL)
    assert len(set(full)) == 8
    assert {(each.hidden, each.layers) for each in full} == {
        (128, 2), (128, 3), (256, 2), (256, 3)
    }  # fmt: skip
    assert {each.learning_rate for each in full} == {1e-3, 5e-3}
    assert {each.dropout for each in full} == {0.2}
    monkeypatch.setattr(grid, "HIDDEN", (4, 8))
    found = list(grid.search(SMALL, parts, CPU, seed=0, epochs=1))
    assert [each.settings for each in found] == grid.list_candidates(SMALL)
    assert len({each.validation_loss for each in found}) == 8


def test_without_a_compiler_training_goes_on_and_says_so(
    parts: Parts, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(inductor.cpp, "cxx", ("no-such-compiler",))
    trainer = make_trainer(replace(SMALL, compile="default"), len(parts.feature_names), CPU, 0)
    days, targets = zip(*(parts.training[place] for place in range(4)), strict=True)
    told = fall_back_to_eager(trainer, [torch.stack(days), torch.stack(targets)])
    assert told.startswith("torch.compile failed, going on without it: InvalidCxxCompiler")
    assert "\n" not in told
    assert trainer.predict is trainer.model
    assert all(each.grad is None for each in trainer.model.parameters())


def test_what_torch_compile_did_is_told(parts: Parts) -> None:
    trainer = make_trainer(replace(SMALL, compile="default"), len(parts.feature_names), CPU, 0)
    # Traced as for any backend, but run as it is: nothing is built.
    trainer.predict = torch.compile(trainer.model, backend="eager")
    days, targets = zip(*(parts.training[place] for place in range(4)), strict=True)
    told = fall_back_to_eager(trainer, [torch.stack(days), torch.stack(targets)])
    assert told.startswith("torch.compile, mode default: 1 graphs compiled, ")
    assert "the first: Attempted to wrap RNN, GRU, or LSTM" in told
    assert trainer.predict is not trainer.model


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


def write_csv(path: Path, values: list[str], first: date = date(2020, 1, 1)) -> str:
    lines = [f"{first + timedelta(days=place)},{value}" for place, value in enumerate(values)]
    path.write_text("\n".join(["day,level", *lines]) + "\n", encoding="utf-8")
    return str(path)


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


def test_the_grid_command_names_the_best(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grid, "HIDDEN", (4,))
    monkeypatch.setattr(grid, "LAYERS", (2,))
    code, out, _ = run([*QUICK, "--grid"], capsys)
    assert code == 0
    assert out.count("validation loss") == 2
    assert "best: hidden 4, layers 2, learning rate 0.0" in out


def test_a_constant_target_has_no_r2_and_the_reason_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_csv(tmp_path / "flat.csv", ["7.3"] * 120)
    code, out, _ = run([*QUICK, "--csv", file], capsys)
    assert code == 0
    assert "test: R² – (the target is 7.3 on every day)  RMSE " in out


@pytest.mark.parametrize(
    ("content", "words", "sentence"),
    [
        ("level,depth\n1,2\n", [], "no column of bad.csv holds dates"),
        ("day,level\n2020-01-01,1\n2020-01-03,2\n", [], "bad.csv lacks 1 day before row 3"),
        ("day,level\n2020-01-01,1\n2020-01-02,2\n", [], "bad.csv has 2 days; sequences of 7 days"),
        ("day,level\n2020-01-01,1\n", ["--target", "x"], "no column of numbers 'x'; choose one of"),
    ],
)
def test_bad_files_end_with_one_sentence(
    content: str,
    words: list[str],
    sentence: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "bad.csv"
    file.write_text(content, encoding="utf-8")
    code, out, err = run([*QUICK, "--csv", str(file), *words], capsys)
    assert code == 2
    assert out == ""
    assert err.startswith("train: ")
    assert sentence in err
    assert err.count("\n") == 1


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
    ],
)
def test_wrong_options_end_with_one_sentence(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run([*QUICK, *words], capsys)
    assert code == 2
    assert sentence in err
    assert err.count("\n") == 1


def test_options_become_settings() -> None:
    words = "--layers 3 --batch-size 32 --workers 2 --prefetch 4 --tf32 --compile max-autotune"
    found = arguments.parse(words.split()).settings
    assert (found.layers, found.batch_size, found.workers, found.prefetch) == (3, 32, 2, 4)
    assert (found.tf32, found.amp, found.compile) == (True, False, "max-autotune")


def test_help_needs_no_torch() -> None:
    code = "import sys; from bench.timeseries import train\n"
    code += "try: train.main(['--help'])\nexcept SystemExit: sys.exit('torch' in sys.modules)"
    child = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert child.returncode == 0, child.stderr
    assert "--sequence" in child.stdout
