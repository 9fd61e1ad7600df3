"""What does a step make although it was there already?"""

from __future__ import annotations

from typing import NamedTuple

from diagnose.measure.lines.source import Place
from diagnose.measure.script.watch.work import LineWork, StepWork

# Elements of a result that is made twice in one step: a loop over rows may well meet one again.
FEWEST_TWICE = 4096


class Repeated(NamedTuple):
    """What a line makes although it was there already."""

    elements: int
    share: float  # of the time in its operators
    # What is the same in another step depends on nothing that is trained; only what is made twice
    # in the same step has a backward pass, which would then be needed once.
    backward_share: float


def find_repeated(steps: list[StepWork]) -> dict[Place, Repeated]:
    """Lines that make the same again: in the same step, or in the other with another batch."""
    if not steps:
        return {}
    first, second = steps[0], steps[-1]
    other_batch = bool(first.inputs) and first.inputs != second.inputs
    found = {}
    for place, line in first.lines.items():
        if place is None:
            continue
        others = second.lines.get(place, LineWork()).results if other_batch else []
        before = {(each.operator, each.print) for each in others}
        met = set[tuple[str, tuple[float, bytes]]]()
        elements, again, twice = 0, 0.0, 0.0
        for each in line.results:
            made = each.operator, each.print
            twice_here = made in met and each.elements >= FEWEST_TWICE
            if (made in before or twice_here) and not each.is_constant:
                elements += each.elements
                again += each.seconds
                twice += each.seconds if made not in before else 0.0
            met.add(made)
        seconds = sum(each.seconds for each in line.results)
        if elements and seconds:
            found[place] = Repeated(elements, again / seconds, twice / seconds)
    return found
