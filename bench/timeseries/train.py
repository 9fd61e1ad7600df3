"""How well is the next day predicted? Train on the first 70 % of a daily series, judge on the end.

  python -m bench.timeseries.train --epochs 30
  python -m bench.timeseries.train --csv air.csv --target pm25 --sequence 60 --grid

Exit codes: 0 fine, 2 wrong usage or input, 3 could not train, 130 interrupted.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from bench.timeseries import arguments
from bench.timeseries.arguments import Options
from bench.train_command import FINE, end_with_code, explain_failure
from diagnose.workload import WorkloadError

if TYPE_CHECKING:
    import torch

    from bench.timeseries.training import Trainer
    from bench.timeseries.windows import Parts


def main(words: Sequence[str] | None = None) -> int:
    return end_with_code(lambda: run(arguments.parse(words)), explain, _complain)


def run(options: Options) -> int:
    # Imported here: torch takes seconds, and a wrong option does not need it.
    from bench.timeseries import importance, metrics
    from bench.timeseries.loader import open_loader
    from bench.timeseries.precision import use_tf32
    from bench.timeseries.series import find_target, read
    from bench.timeseries.training import predict_all
    from bench.timeseries.windows import cut

    device = _choose_device(options.device)
    series = read(options.csv)
    target = find_target(series, options.target)
    parts = cut(series, target, options.settings.sequence)
    print(
        f"{series.description}: {len(series)} days, {len(parts.feature_names)} features, "
        f"{len(parts.training)} / {len(parts.validation)} / {len(parts.test)} windows of "
        f"{options.settings.sequence} days; predicting {target} of the next day on {device}"
    )
    with use_tf32(options.settings.tf32):
        train_once = _train_grid if options.grid else _train_one
        trainer = train_once(options, parts, device)
        test = open_loader(trainer.settings, parts.test, device)
        predictions = parts.target_scaler.undo(predict_all(trainer, test).double())
        weights = importance.weigh_days(trainer, test)
    print(f"test: {metrics.describe(metrics.measure(parts.test.measured, predictions))}")
    print(f"attention: {importance.describe(weights)}")
    return FINE


def explain(error: Exception) -> str | None:
    saves_memory = (
        "halve --batch-size and double --accumulate, which keeps the gradients, or use a smaller "
        "--hidden or --sequence"
    )
    return explain_failure(error, saves_memory)


def _train_one(options: Options, parts: Parts, device: torch.device) -> Trainer:
    from bench.timeseries.compiling import fall_back_to_eager
    from bench.timeseries.loader import open_loader
    from bench.timeseries.training import fit, make_trainer

    trainer = make_trainer(options.settings, len(parts.feature_names), device, options.seed)
    if options.settings.compile:
        batch = next(iter(open_loader(trainer.settings, parts.training, device)))
        print(fall_back_to_eager(trainer, batch))
    for each in fit(trainer, parts, options.seed, options.epochs, options.patience):
        _show(
            f"epoch {each.epoch} of {options.epochs}  training loss {each.training_loss:.4f}  "
            f"validation loss {each.validation_loss:.4f}  best epoch {each.best_epoch}"
        )
    _finish_line()
    print(f"stopped after epoch {each.epoch}; the weights are those of epoch {each.best_epoch}")
    return trainer


def _train_grid(options: Options, parts: Parts, device: torch.device) -> Trainer:
    from bench.timeseries.grid import search

    found = []
    run = search(options.settings, parts, device, options.seed, options.epochs, options.patience)
    for candidate in run:
        chosen = candidate.settings
        print(
            f"hidden {chosen.hidden}  layers {chosen.layers}  dropout {chosen.dropout:g}  "
            f"learning rate {chosen.learning_rate:g}: validation loss "
            f"{candidate.validation_loss:.4f} after {candidate.epochs} epochs",
            flush=True,
        )
        found.append(candidate)
    best = min(found, key=lambda candidate: candidate.validation_loss)
    print(
        f"best: hidden {best.settings.hidden}, layers {best.settings.layers}, "
        f"learning rate {best.settings.learning_rate:g}"
    )
    return best.trainer


def _choose_device(name: str | None) -> torch.device:
    import torch

    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise WorkloadError(f"device '{name}' cannot be used; try --device cpu") from error
    return device


def _show(line: str) -> None:
    """One line that is written over on a terminal; a line each in a log."""
    live = sys.stderr.isatty()
    print(f"\r{line}" if live else line, end="" if live else "\n", file=sys.stderr, flush=True)


def _finish_line() -> None:
    if sys.stderr.isatty():
        print(file=sys.stderr)


def _complain(sentence: str, code: int) -> int:
    print(f"train: {sentence}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
