"""Do the printed figures of the evaluation guides agree with each other? No measurement."""

from __future__ import annotations

import math

from diagnose.analyze.claims.arithmetic import agree
from diagnose.analyze.claims.judges import ClaimResult
from diagnose.analyze.optimize.plans import EXAMPLE_BATCHES
from diagnose.analyze.units import number

Range = tuple[float, float]

SECONDS_PER_BATCH = 1.80
MEMORY_USED_GB, MEMORY_GB = 50, 80
CARDS = 8
# A printed range is rounded; by more than this it says something else.
ROUNDED = 0.02
BASE_BATCH = 64
# By the largest max_crops that it holds for: the guide's first estimate.
SCALE_FACTORS = ((4, 1.0), (8, 0.75), (12, 0.5), (math.inf, 0.4))
SINGLE_SECONDS = 120.0
_TOTAL_HOURS = EXAMPLE_BATCHES * SECONDS_PER_BATCH / 3600


def memory_share() -> ClaimResult:
    share = MEMORY_USED_GB / MEMORY_GB
    text = f"{MEMORY_USED_GB} / {MEMORY_GB} GB = {100 * share:.1f} %, printed 62.5 %"
    return agree(text, 0.6245, 0.6255, share)


def total_time() -> ClaimResult:
    """The seconds are printed to a hundredth, the hours to a tenth."""
    low, high = (EXAMPLE_BATCHES * (SECONDS_PER_BATCH + error) / 3600 for error in (-0.005, 0.005))
    text = (
        f"{EXAMPLE_BATCHES} × {SECONDS_PER_BATCH:.2f} s = {number(_TOTAL_HOURS, 3)} h, printed 3.3"
    )
    return agree(text, low - 0.05, high + 0.05, 3.3)


def doubled_memory(printed_gb: float) -> ClaimResult:
    """Both figures are round ones."""
    doubled = 2 * MEMORY_USED_GB
    text = f"2 × {MEMORY_USED_GB} GB = {doubled} GB, printed about {printed_gb:g}"
    found = agree(text, doubled * (1 - ROUNDED), doubled * (1 + ROUNDED), printed_gb)
    if found.verdict != "CONFIRMED":
        return found
    condition = "on a model without weights: only what grows with the batch doubles"
    return ClaimResult("CONDITIONAL", f"{text}, which doubles the weights too", condition)


def eight_cards() -> ClaimResult:
    minutes = 60 * _TOTAL_HOURS / CARDS
    text = f"{number(_TOTAL_HOURS, 3)} h / {CARDS} = {minutes:.1f} min, printed about 25"
    return agree(text, minutes - 0.5, minutes + 0.5, 25)


def plan_times(factor: Range, minutes: Range) -> ClaimResult:
    """The factors that the printed times allow, against the printed factors."""
    total = 60 * _TOTAL_HOURS
    low, high = total / minutes[1], total / minutes[0]
    text = (
        f"{total:.0f} min in {minutes[0]:g} to {minutes[1]:g} min are {number(low, 3)}x to "
        f"{number(high, 3)}x, printed {_printed(factor)}"
    )
    if high < factor[0] or low > factor[1]:
        return ClaimResult("REFUTED", text, "the time and the factor contradict each other")
    inside = low >= factor[0] * (1 - ROUNDED) and high <= factor[1] * (1 + ROUNDED)
    # One printed factor and a range of times: the times are what is rounded.
    if inside or factor[0] == factor[1]:
        return ClaimResult("CONFIRMED", text)
    return ClaimResult("CONDITIONAL", text, "on which ends are compared")


def plan_product(parts: tuple[Range, ...], printed: Range) -> ClaimResult:
    """What the guide's own single gains multiply to."""
    low, high = math.prod(part[0] for part in parts), math.prod(part[1] for part in parts)
    factors = " × ".join(_printed(part).removesuffix("x") for part in parts)
    text = f"{factors} = {_printed((low, high))}, printed {_printed(printed)}"
    if low > printed[1] or high < printed[0]:
        return ClaimResult("REFUTED", text, "the parts leave out, or add, a part of the plan")
    return ClaimResult("CONFIRMED", text)


def estimate(max_crops: int, printed: Range) -> ClaimResult:
    """The guide's first estimate, against the batch that it expects."""
    batch, expected = first_estimate(max_crops), _printed(printed).removesuffix("x")
    text = f"{batch} of {BASE_BATCH} at {max_crops} crops, expected {expected}"
    return agree(text, *printed, batch)


def first_estimate(max_crops: int) -> int:
    factor = next(factor for most, factor in SCALE_FACTORS if max_crops <= most)
    return math.floor(BASE_BATCH * factor)


def larger_first(begins_with: int, goes_on_with: int) -> ClaimResult:
    """The guide's own estimates for the crops that it begins with and for those after them."""
    first, second = first_estimate(begins_with), first_estimate(goes_on_with)
    text = (
        f"the guide's own estimates are {first} for {begins_with} crops and {second} for "
        f"{goes_on_with}"
    )
    if first > second:
        return ClaimResult("CONFIRMED", text)
    return ClaimResult("REFUTED", text, "more crops need more memory, so the batch is smaller")


def probing_time() -> ClaimResult:
    tests, seconds, printed = (1, 5), (1, 2), (10, 30)
    least, most = tests[0] * seconds[0], tests[1] * seconds[1]
    text = (
        f"{tests[0]} to {tests[1]} tests of {seconds[0]} to {seconds[1]} s are {least} to {most} "
        f"s, printed {printed[0]} to {printed[1]} s per max_crops"
    )
    if most < printed[1]:
        return ClaimResult("REFUTED", text, "the two figures contradict each other")
    return ClaimResult("CONFIRMED", text)


def batch_gain(seconds: float, printed: float) -> ClaimResult:
    """Whole seconds, and a gain to a tenth."""
    low, high = ((SINGLE_SECONDS - e) / (seconds + e) for e in (0.5, -0.5))
    text = (
        f"{SINGLE_SECONDS:g} / {seconds:g} s = {SINGLE_SECONDS / seconds:.2f}, printed {printed:g}"
    )
    return agree(text, low - 0.05, high + 0.05, printed)


def _printed(factor: Range) -> str:
    low, high = factor
    return f"{low:g}x" if low == high else f"{low:g} to {high:g}x"
