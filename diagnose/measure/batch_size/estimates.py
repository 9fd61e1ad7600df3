"""Where does a search begin? Rules of thumb by memory, by parameters and by image tiles.

They come from field reports about evaluating language and vision models. They are only a first
guess: the report holds them against what was found.
"""

from __future__ import annotations

from collections.abc import Sequence

from diagnose.records.batch_size import Estimate

GB = 1e9
BILLION = 1e9

# Memory from which a row holds, and the batch sizes that it recommends.
BY_MEMORY: Sequence[tuple[float, int, int]] = (
    (16 * GB, 8, 16),
    (12 * GB, 4, 8),
    (8 * GB, 2, 4),
    (0.0, 1, 2),
)
# Parameters up to which a row holds.
BY_PARAMETERS: Sequence[tuple[float, int, int]] = (
    (1 * BILLION, 8, 16),
    (7 * BILLION, 4, 8),
    (13 * BILLION, 2, 4),
    (float("inf"), 1, 2),
)
# max_crops up to which the base batch is taken times this factor.
BY_MAX_CROPS: Sequence[tuple[float, float]] = (
    (4, 1.0),
    (8, 0.75),
    (12, 0.5),
    (float("inf"), 0.4),
)


def list_estimates(
    memory_bytes: float | None, parameters: int, base: int | None, max_crops: int | None
) -> tuple[Estimate, ...]:
    """What each rule says, and first where to begin.

    That is the user's own base batch, who knows the job, else the smaller of the tables' rows;
    either with fewer samples where each has many tiles.
    """
    rules = []
    if memory_bytes is not None:
        _, low, high = next(row for row in BY_MEMORY if memory_bytes >= row[0])
        rules.append(Estimate(f"{memory_bytes / GB:.3g} GB of memory", low, high))
    _, low, high = next(row for row in BY_PARAMETERS if parameters < row[0])
    rules.append(Estimate(f"{parameters / BILLION:.3g} billion parameters", low, high))
    rules.sort(key=lambda rule: rule.high)
    begin = rules[0] if base is None else Estimate(f"base batch {base}", base, base)
    if max_crops is not None:
        begin = _scale(begin, max_crops)
    return (begin, *(rule for rule in rules if rule != begin))


def _scale(rule: Estimate, max_crops: int) -> Estimate:
    factor = crops_factor(max_crops)
    low, high = (max(1, int(batch * factor)) for batch in (rule.low, rule.high))
    return Estimate(f"{rule.source} at max_crops {max_crops}", low, high)


def crops_factor(max_crops: int) -> float:
    return next(factor for most, factor in BY_MAX_CROPS if max_crops <= most)
