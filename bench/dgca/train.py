"""How is the full model trained? As its authors do it, in one process or under torchrun.

  python -m bench.dgca.preprocess --output data --size small
  python -m bench.dgca.train --do-train --do-eval --preprocessed-train data/train.pt \\
      --preprocessed-eval data/dev.pt --apply-prompt --mft --size small --output runs/first
  torchrun --nproc-per-node=2 bench/dgca/train.py ...

Exit codes: 0 fine, 2 wrong usage or input, 3 could not train, 130 interrupted and saved.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

if not __package__:
    # torchrun puts this folder on the path, where model.py and loss.py would hide others' files.
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from bench.dgca import arguments
from bench.train_command import FINE, INTERRUPTED, complain, end_with_code

SAVES_MEMORY = (
    "use a smaller --train-batch-size, more --gradient-accumulation-steps or a smaller --size"
)


def main(words: Sequence[str] | None = None) -> int:
    return end_with_code("train", partial(run, words), SAVES_MEMORY)


def run(words: Sequence[str] | None) -> int:
    options = arguments.parse(words)
    # Imported here: torch and transformers take seconds, and a wrong option needs neither.
    from bench.dgca import job

    if job.run(options):
        return FINE
    return complain("train", "interrupted; go on with --resume", INTERRUPTED)


if __name__ == "__main__":
    sys.exit(main())
