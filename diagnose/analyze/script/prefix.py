"""Is the whole prefix computed again for every token? Calls of a model whose input grows by one."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator

from diagnose.analyze.script.claims import Claim
from diagnose.analyze.units import number, percent, scale
from diagnose.records.script import ScriptRecord
from diagnose.records.stats import FEWEST_FOR_INTERVAL, Interval

ADVICE = (
    "keep keys and values of the prefix (use_cache=True and past_key_values, or a cache of your "
    "own) and give the model only the new token"
)
# Of all calls: so many must be one token longer than the call before.
MOST_CALLS = 0.7


def has_growing_prefix(record: ScriptRecord) -> bool:
    pairs = list(itertools.pairwise(length for length, _ in record.prefixes))
    grown = [b for a, b in pairs if b == a + 1]
    return len(pairs) >= 2 * FEWEST_FOR_INTERVAL and len(grown) >= MOST_CALLS * len(pairs)


def judge_prefix(record: ScriptRecord) -> Iterator[Claim]:
    """With a cache a token costs about what it costs after the shortest prefix."""
    if not has_growing_prefix(record):
        return
    mean = statistics.fmean(seconds for _, seconds in record.prefixes)
    ordered = sorted(record.prefixes)
    shortest, tenth = ordered[0][0], max(2, len(ordered) // 10)
    of_short = statistics.median(seconds for _, seconds in ordered[:tenth])
    one = max(0.0, _line(record.prefixes, 1.0))
    low, high = sorted((mean - of_short, mean - min(one, of_short)))
    # What is above the cost of a short prefix comes back for sure; down to one token, probably.
    calls = _calls_per_step(record)
    gain = scale(Interval((low + high) / 2, max(0.0, low), max(0.0, high)), calls)
    again = 1 - 1 / statistics.fmean(length for length, _ in record.prefixes)
    yield Claim(
        "recompute",
        record.prefix_site,
        gain,
        verified=False,
        evidence=(
            f"each call is given one token more than the call before, from {shortest} to "
            f"{ordered[-1][0]}: {percent(again)} of the positions were computed before; after "
            f"short prefixes a call takes {number(of_short * 1e3, 3)} ms, on average "
            f"{number(mean * 1e3, 3)} ms"
        ),
        advice=ADVICE,
    )


def _calls_per_step(record: ScriptRecord) -> float:
    """A step is one call, or all those of a text: then a shorter prefix begins the next step."""
    if record.boundary == "model call":
        return 1.0
    pairs = itertools.pairwise(length for length, _ in record.prefixes)
    return len(record.prefixes) / (1 + sum(b <= a for a, b in pairs))


def _line(points: tuple[tuple[int, float], ...], at: float) -> float:
    """The value there of the straight line through all points."""
    x, y = (statistics.fmean(each[place] for each in points) for place in (0, 1))
    spread = sum((length - x) ** 2 for length, _ in points)
    slope = sum((a - x) * (b - y) for a, b in points) / spread if spread else 0.0
    return y + slope * (at - x)
