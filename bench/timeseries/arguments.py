"""What can be asked of a training run of the recurrent model?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path

from bench.timeseries.settings import COMPILE_MODES, HIDDEN, SEQUENCES, Settings
from bench.train_command import flag, option, parse_options
from diagnose.commands.shared.arguments import between, count, count_or_none
from diagnose.workload import WorkloadError

EXAMPLE = """\
example:
  python -m bench.timeseries.train --epochs 30
  python -m bench.timeseries.train --csv air.csv --target pm25 --sequence 60 --hidden 256
  python -m bench.timeseries.train --grid --epochs 30
"""

_count = partial(option, count, metavar="N")


def _rate(text: str) -> float:
    return between(text, 0.0, 1.0, "a number between 0 and 1")


def _share(text: str) -> float:
    return 0.0 if text in ("0", "0.0") else between(text, 0.0, 1.0, "0 or a number below 1")


@dataclass(frozen=True)
class Options:
    """A training run: its data, its model, how it is trained, and what is done for its speed."""

    csv: Path | None = option(
        Path, "your own daily series; default: Seattle's weather", metavar="FILE"
    )
    target: str | None = option(
        text="column to predict; default: temp_max or the first one", metavar="NAME"
    )
    sequence: int = _count(f"days that the model sees, such as {SEQUENCES} (%(default)s)", 30)
    hidden: int = _count(f"width of the LSTM, such as {HIDDEN} (%(default)s)", 128)
    layers: int = _count("layers of the LSTM (%(default)s)", 2)
    dropout: float = option(_share, "between layers (%(default)s)", 0.2)
    epochs: int = _count("epochs at the most (%(default)s)", 100)
    patience: int = _count("epochs without improvement before it stops (%(default)s)", 20)
    batch_size: int = _count("windows in one forward pass (%(default)s)", 128)
    accumulate: int = _count("batches in one optimiser step (%(default)s)", 1)
    learning_rate: float = option(_rate, "of Adam (%(default)s)", 1e-3)
    grid: bool = flag("try 8 models, keep the best")
    seed: int = option(count_or_none, "of everything random (%(default)s)", 0)
    device: str | None = option(text="cpu, cuda, cuda:1 …; default: CUDA where there is one")
    amp: bool = flag("float16 on CUDA, bfloat16 elsewhere")
    tf32: bool = flag("round products to TF32 (Ampere, later)")
    compile: str = option(
        text="torch.compile, in this mode (default)",
        default="",
        nargs="?",
        const="default",
        choices=COMPILE_MODES[1:],
    )
    workers: int = option(count_or_none, "loader processes (%(default)s)", 0)
    prefetch: int = _count("batches ahead of each loader process (%(default)s)", 2)

    @property
    def settings(self) -> Settings:
        names = [each.name for each in fields(Settings) if hasattr(self, each.name)]
        # A person who trains wants what costs nothing; the ladder is there to compare the others.
        chosen = {name: getattr(self, name) for name in names}
        return Settings(**chosen, set_to_none=True, evaluate_on_device=True)


def parse(words: Sequence[str] | None = None) -> Options:
    return parse_options(
        Options,
        words,
        _require_one_model_to_compile,
        prog="train",
        description="Train an LSTM with attention to predict the next day of a daily series.",
        example=EXAMPLE,
    )


def _require_one_model_to_compile(options: Options) -> None:
    if options.grid and options.compile:
        raise WorkloadError("--grid with --compile would compile 8 models; leave one of them out")
