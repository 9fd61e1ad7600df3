"""Who pays for Python's garbage collector? The line that makes the objects, if it is a cause."""

from __future__ import annotations

from dataclasses import replace

from diagnose.analyze.script.claims import Claim, add
from diagnose.analyze.units import number
from diagnose.records.script import GARBAGE, Site

# Lines of one loop.
NEAR_LINES = 3


def with_garbage(claims: list[Claim]) -> list[Claim]:
    """A line that makes so many objects that they are collected there pays for that too.

    Unless leaving out older objects was seen to help: then those are the cause.
    """
    collected = next((c for c in claims if c.suspect and c.suspect.key == GARBAGE), None)
    if collected is None or collected.verified or collected.site is None:
        return claims
    of_line = [e for e in claims if e.cause != "host" and _is_near(e, collected.site)]
    most = max(of_line, key=lambda each: each.gain.center, default=None)
    if most is None:
        return claims
    rest = [each for each in claims if each is not collected and each is not most]
    if not most.verified:  # a trial has left out both
        seconds = number(collected.gain.center * 1e3, 3)
        evidence = f"{most.evidence}; Python's garbage collector takes {seconds} ms more there"
        most = replace(most, gain=add(most.gain, collected.gain), evidence=evidence)
    return [*rest, most]


def _is_near(claim: Claim, site: Site) -> bool:
    own = claim.site
    same = own is not None and (own.file, own.function) == (site.file, site.function)
    return same and own is not None and abs(own.line - site.line) <= NEAR_LINES
