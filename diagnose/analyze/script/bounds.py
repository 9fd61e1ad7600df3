"""Which causes does the activity of a device show? What it idled for, and what a replay gives back.

The bounds come from the events of a few steps, of a live run or of a trace file alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from diagnose.analyze.script.claims import Claim
from diagnose.analyze.units import number
from diagnose.records.script import Cause, Suspect
from diagnose.records.stats import Interval
from diagnose.records.trace import Bound

# The device idles while the host does this. Of the others it is the consequence that costs: a
# device that was waited for has nothing to do afterwards.
_SEEN_IDLE: tuple[Cause, ...] = ("input", "launch", "host", "allocation")


def judge_bounds(bounds: Sequence[Bound], suspects: Sequence[Suspect]) -> Iterator[Claim]:
    """Each with what was seen as its gain, and the interval from nothing to the bound."""
    for each in bounds:
        is_seen = each.cause in _SEEN_IDLE
        likely = min(each.idle, each.seconds) if is_seen else each.seconds
        idles = f"seen: the device idles {number(each.idle * 1e3, 3)} ms of a step meanwhile; "
        yield Claim(
            each.cause,
            each.site,
            Interval(likely, 0.0, each.seconds),
            verified=False,
            evidence=f"{idles if each.idle > 0 else ''}bound: a replay without {each.what}",
            suspect=next((one for one in suspects if one.site == each.site), None),
        )
