"""How is a number written for a reader? The one place that knows ms, GB and decimals."""

from __future__ import annotations

import math
from dataclasses import dataclass

from diagnose.records.stats import Interval

# Four decimals of a millisecond are 0.1 µs: below that the clock itself is the error.
MOST_DECIMALS = 4
_SIGNIFICANT = 4
_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
# From two of the next unit on: 90 min are easier to compare than 1.5 h.
_DURATIONS = ((3600.0, "h"), (60.0, "min"))
_FEWEST_OF_UNIT = 2


@dataclass(frozen=True)
class Unit:
    """How the numbers of one column are written, with or without their interval."""

    factor: float = 1.0  # from the SI unit of the record to the unit of the reader
    suffix: str = ""
    significant: int = _SIGNIFICANT
    decimals: int = MOST_DECIMALS  # at most so many
    prefixed: bool = False  # 12.3 GB instead of 12300000000 B
    shortest: bool = False  # 450 and 0.1, for what was not measured but read

    def write(self, value: float | Interval) -> str:
        if isinstance(value, Interval):
            if self.prefixed:
                return scaled_spread(value, self.suffix)
            return spread(scale(value, self.factor), self.decimals) + self._end
        if isinstance(value, int) and self.factor == 1.0 and not self.prefixed:
            return f"{value}{self._end}"
        if self.prefixed:
            return scaled(value, self.suffix)
        if self.shortest:
            return f"{value * self.factor:g}{self._end}"
        return number(value * self.factor, self.significant) + self._end

    @property
    def _end(self) -> str:
        return f" {self.suffix}" if self.suffix and self.suffix != "x" else self.suffix


PLAIN = Unit()
AS_READ = Unit(shortest=True)
MILLISECONDS = Unit(1e3)
PERCENT = Unit(1e2, "%", significant=2, decimals=1)
TIMES = Unit(suffix="x")
BYTES = Unit(suffix="B", prefixed=True)


def number(value: float, significant: int = _SIGNIFICANT) -> str:
    """Fixed notation with so many significant digits, and at least the whole number."""
    if value == 0:
        return "0"
    decimals = significant - 1 - math.floor(math.log10(abs(value)))
    return _fixed(value, max(0, min(MOST_DECIMALS, decimals)))


def milliseconds(interval: Interval) -> str:
    """Centre and interval in ms, with the decimals that the interval justifies."""
    return spread(scale(interval, 1e3))


def percent(share: float) -> str:
    digits = 0 if abs(share) >= 0.1 else 1
    return f"{_fixed(100 * share, digits)} %"


def percent_interval(interval: Interval) -> str:
    return f"{spread(scale(interval, 1e2), most_decimals=1)} %"


def scale(interval: Interval, factor: float) -> Interval:
    return interval.map(lambda value: value * factor)


def spread(interval: Interval, most_decimals: int = MOST_DECIMALS) -> str:
    half = interval.half_width
    if half is None or interval.low is None or interval.high is None:
        return f"{number(interval.center)} (no interval)"
    # Two digits of the half-width: more would claim what the interval denies.
    wanted = 3 if half == 0 else 1 - math.floor(math.log10(half))
    decimals = max(0, min(most_decimals, wanted))
    center, low, high = (
        _fixed(value, decimals) for value in (interval.center, interval.low, interval.high)
    )
    return f"{center} [{low}, {high}]"


def scaled(value: float, unit: str) -> str:
    """12.3 GB, 4.56 TFLOP/s: powers of ten, never of 1024."""
    size, prefix = _prefix(value)
    return f"{number(value / size, 3)} {prefix}{unit}"


def scaled_spread(interval: Interval, unit: str) -> str:
    size, prefix = _prefix(interval.center)
    return f"{spread(scale(interval, 1 / size))} {prefix}{unit}"


def duration(length: Interval | float) -> str:
    """Seconds, minutes or hours: whatever leaves a number that one can imagine."""
    seconds = length.center if isinstance(length, Interval) else length
    large = (each for each in _DURATIONS if seconds >= _FEWEST_OF_UNIT * each[0])
    size, unit = next(large, (1.0, "s"))
    if isinstance(length, Interval):
        return f"{spread(scale(length, 1 / size))} {unit}"
    return f"{number(length / size, 3)} {unit}"


def pcie_link(generation: float | None, width: float | None) -> str:
    """gen 4 x16: how links are named on boards and in their manuals."""
    parts = (("gen ", generation), ("x", width))
    return " ".join(f"{name}{'?' if value is None else f'{value:.0f}'}" for name, value in parts)


def _prefix(value: float) -> tuple[float, str]:
    return next((each for each in _PREFIXES if abs(value) >= each[0]), (1.0, ""))


def _fixed(value: float, decimals: int) -> str:
    text = f"{value:.{decimals}f}"
    # "-0.0" would claim a sign that was rounded away.
    return text.lstrip("-") if not text.strip("-0.") else text
