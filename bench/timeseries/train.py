"""How well is the next day predicted? Train on the first 70 % of a daily series, judge on the end.

  python -m bench.timeseries.train --epochs 30
  python -m bench.timeseries.train --csv air.csv --target pm25 --sequence 60 --grid

Exit codes: 0 fine, 2 wrong usage or input, 3 could not train, 130 interrupted.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial

from bench.timeseries import arguments
from bench.train_command import FINE, end_with_code

SAVES_MEMORY = (
    "halve --batch-size and double --accumulate, which keeps the gradients, or use a smaller "
    "--hidden or --sequence"
)


def main(words: Sequence[str] | None = None) -> int:
    return end_with_code("train", partial(run, words), SAVES_MEMORY)


def run(words: Sequence[str] | None) -> int:
    options = arguments.parse(words)
    # Imported here: torch takes seconds, and a wrong option does not need it.
    from bench.timeseries import job

    job.run(options)
    return FINE


if __name__ == "__main__":
    sys.exit(main())
