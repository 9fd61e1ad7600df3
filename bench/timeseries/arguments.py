"""What can be asked of a training run of the recurrent model?

Nothing here imports torch, so that --help and a wrong option are answered at once.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.dgca.arguments import open_train_parser
from bench.timeseries.settings import COMPILE_MODES, HIDDEN, SEQUENCES, Settings
from diagnose.commands.arguments import between, count, count_or_none

EXAMPLE = """\
example:
  python -m bench.timeseries.train --epochs 30
  python -m bench.timeseries.train --csv air.csv --target pm25 --sequence 60 --hidden 256
  python -m bench.timeseries.train --grid --epochs 30
"""


@dataclass(frozen=True)
class Options:
    """A training run."""

    settings: Settings
    csv: Path | None
    target: str | None
    grid: bool
    epochs: int
    patience: int
    device: str | None
    seed: int


def parse(words: Sequence[str] | None = None) -> Options:
    """The options, or exit code 2 with one sentence."""
    parser = _build_parser()
    given = vars(parser.parse_args(words))
    if given["grid"] and given["compile"]:
        parser.error("--grid with --compile would compile 8 models; leave one of them out")
    names = ("csv", "target", "grid", "epochs", "patience", "device", "seed")
    run = {name: given.pop(name) for name in names}
    # A person who trains wants what costs nothing; the ladder is there to compare the others.
    settings = Settings(**given, set_to_none=True, evaluate_on_device=True)
    return Options(settings=settings, **run)


def _build_parser() -> argparse.ArgumentParser:
    parser = open_train_parser(
        "Train an LSTM with attention to predict the next day of a daily series.", EXAMPLE
    )
    data = parser.add_argument_group("data")
    data.add_argument(
        "--csv", type=Path, metavar="FILE", help="your own daily series; default: Seattle's weather"
    )
    data.add_argument(
        "--target", metavar="NAME", help="column to predict; default: temp_max or the first one"
    )
    _add_count(data, "--sequence", 30, f"days that the model sees, such as {_list(SEQUENCES)}")
    model = parser.add_argument_group("model")
    _add_count(model, "--hidden", 128, f"width of the LSTM, such as {_list(HIDDEN)}")
    _add_count(model, "--layers", 2, "layers of the LSTM")
    model.add_argument("--dropout", type=_share, default=0.2, help="between layers (0.2)")
    training = parser.add_argument_group("training")
    _add_count(training, "--epochs", 100, "epochs at the most")
    _add_count(training, "--patience", 20, "epochs without improvement before it stops")
    _add_count(training, "--batch-size", 128, "windows in one forward pass")
    _add_count(training, "--accumulate", 1, "batches in one optimiser step")
    training.add_argument("--learning-rate", type=_rate, default=1e-3, help="of Adam (0.001)")
    training.add_argument("--grid", action="store_true", help="try 8 models, keep the best")
    training.add_argument("--seed", type=count_or_none, default=0, help="of everything random (0)")
    speed = parser.add_argument_group("speed")
    speed.add_argument("--device", help="cpu, cuda, cuda:1 …; default: CUDA where there is one")
    speed.add_argument("--amp", action="store_true", help="float16 on CUDA, bfloat16 elsewhere")
    speed.add_argument("--tf32", action="store_true", help="round products to TF32 (Ampere, later)")
    speed.add_argument(
        "--compile",
        nargs="?",
        const="default",
        default="",
        choices=COMPILE_MODES[1:],
        help="torch.compile, in this mode (default)",
    )
    speed.add_argument("--workers", type=count_or_none, default=0, help="loader processes (0)")
    _add_count(speed, "--prefetch", 2, "batches ahead of each loader process")
    return parser


def _add_count(group: argparse._ArgumentGroup, name: str, default: int, text: str) -> None:
    group.add_argument(name, type=count, default=default, metavar="N", help=f"{text} ({default})")


def _list(values: Sequence[int]) -> str:
    return "/".join(map(str, values))


def _rate(text: str) -> float:
    return between(text, 0.0, 1.0, "a number between 0 and 1")


def _share(text: str) -> float:
    return 0.0 if text in ("0", "0.0") else between(text, 0.0, 1.0, "0 or a number below 1")
