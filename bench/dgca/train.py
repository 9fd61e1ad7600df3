"""How is the full model trained? As its authors do it, in one process or under torchrun.

  python -m bench.dgca.preprocess --output data --size small
  python -m bench.dgca.train --do-train --do-eval --preprocessed-train data/train.pt \\
      --preprocessed-eval data/dev.pt --apply-prompt --mft --size small --output runs/first
  torchrun --nproc-per-node=2 bench/dgca/train.py ...

Exit codes: 0 fine, 2 wrong usage or input, 3 could not train, 130 interrupted and saved.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

if not __package__:
    # torchrun puts this folder on the path, where config.py and model.py would hide others' files.
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from bench.dgca import arguments
from bench.workload import WorkloadError


def main(words: Sequence[str] | None = None) -> int:
    try:
        options = arguments.parse(words)
        # Imported here: torch and transformers take seconds, and a wrong option needs neither.
        from bench.dgca import job

        finished = job.run(options)
    except WorkloadError as error:
        return _complain(str(error), 2)
    except KeyboardInterrupt:
        return _complain("interrupted", 130)
    except Exception as error:
        reason = explain(error)
        if reason is None:
            raise
        return _complain(reason, 3)
    if not finished:
        return _complain("interrupted; go on with --resume", 130)
    return 0


def explain(error: Exception) -> str | None:
    """Why training could not go on, if it is a known way to fail; None for a fault of ours."""
    import torch

    from bench.dgca.trainer import TrainingFailed
    from bench.out_of_memory import is_out_of_memory

    if isinstance(error, TrainingFailed):
        return str(error)
    if is_out_of_memory(error, torch.OutOfMemoryError):
        return (
            "out of memory; use a smaller --train-batch-size, more "
            "--gradient-accumulation-steps or a smaller --size"
        )
    return None


def _complain(sentence: str, code: int) -> int:
    # Wrong input is wrong in every process; what fails in one of them is told by that one.
    if code == 3 or os.environ.get("RANK", "0") == "0":
        print(f"train: {sentence}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
