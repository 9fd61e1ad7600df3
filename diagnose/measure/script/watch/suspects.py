"""Which work of a step belongs together, and what is known about it?

The functions on the way to forward, backward and optimiser are the spine of the step; what they
call beside that is taken as a whole, and so is a loop. Everything else is taken line by line.
"""

from __future__ import annotations

import linecache
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import CodeType

from diagnose.measure.lines.source import Place
from diagnose.measure.script.watch.repeated import find_repeated
from diagnose.measure.script.watch.stacks import Stack
from diagnose.measure.script.watch.where import (
    Sources,
    Span,
    Spot,
    block_around,
    loop_around,
    loop_of_elements,
)
from diagnose.measure.script.watch.work import LineWork, StepWork
from diagnose.records.script import GARBAGE, STARTS, Phase, Suspect

# A constant of a few numbers is made again in many steps, and rightly so.
FEWEST_REPEATED_ELEMENTS = 256
# Of the time in a group's operators: so much must give the same results in both steps.
REPEATED_SHARE = 0.8
# Of the runs of a line: so many come behind each other where they are layers.
LAYERS_SHARE = 0.8
# A framework may write them before it goes back to training.
_FILES: tuple[Phase, ...] = ("checkpoint", "logging")
_STEP_PHASES: tuple[Phase, ...] = ("forward", "backward", "optimizer")


@dataclass
class Group:
    """Samples that belong together."""

    key: str
    phase: Phase
    code: CodeType | None = None  # of the function that is the group
    span: Span | None = None
    head: Spot | None = None  # to name instead of the hottest line
    seconds: float = 0.0
    torch_seconds: float = 0.0  # in Python code of torch's own
    spots: dict[Spot, float] = field(default_factory=lambda: defaultdict(float))
    # Functions of a framework that its lines led to.
    besides: dict[CodeType, float] = field(default_factory=lambda: defaultdict(float))
    # Of a group that was split: which part of a line's work it has, and whether that repeats.
    parts: Mapping[Place, float] = field(default_factory=dict)
    backward_parts: Mapping[Place, float] = field(default_factory=dict)
    repeats: bool | None = None

    def name_if_hidden(self, spot: Spot | None) -> None:
        """Where most of its time passes in no line of the user's, this one is to be named."""
        if sum(self.spots.values()) < self.seconds / 2:
            self.head = spot

    def mentions(self, name: str) -> bool:
        """Whether its functions use this name; of a module, which uses all, its own lines."""
        for code, line in self.spots:
            if code.co_name != "<module>":
                if name in (*code.co_names, *code.co_varnames, *code.co_freevars):
                    return True
                continue
            lines = self.span or Span(line, line)
            text = "".join(linecache.getlines(code.co_filename)[lines.first - 1 : lines.last])
            if re.search(rf"\b{re.escape(name)}\b", text):
                return True
        return False

    @property
    def hottest(self) -> Spot | None:
        if self.head is not None:
            return self.head
        spot = max(self.spots, key=lambda spot: self.spots[spot], default=None)
        if spot is None or self.phase not in ("input", "host"):
            return spot
        # Where no line of a loop has most of its time, the loop is what has to change.
        loop = loop_of_elements(spot)
        if loop is None:
            return spot
        lines = (
            s for each, s in self.spots.items() if each.code is spot.code and each.line in loop
        )
        return spot if self.spots[spot] >= sum(lines) / 2 else Spot(spot.code, loop.first)


class Spine:
    """The user's functions that lead to forward, backward and optimiser, and their lines there."""

    def __init__(
        self,
        ends: Iterable[Spot],
        samples: Mapping[Stack, float],
        marks: Sequence[tuple[Spot, ...]],
        steps: Sequence[StepWork] = (),
    ) -> None:
        self._trained = {
            (place.path, place.line)
            for step in steps
            for place, line in step.lines.items()
            if place is not None and line.backward_seconds
        }
        self.anchors: dict[CodeType, set[int]] = {}
        for spot in ends:
            self._add(spot)
        self._evaluating = {mark[0].code for mark in marks if mark} - self.anchors.keys()
        for mark in marks:
            self._evaluating |= {spot.code for spot in mark if spot.code not in self.anchors}
        inline = {spot for mark in marks for spot in mark if spot.code in self.anchors}
        for stack in samples:
            evaluates = stack.evaluates or any(
                spot.code in self._evaluating for spot in stack.spots
            )
            if stack.phase in _STEP_PHASES and not evaluates and not inline & set(stack.way):
                for spot in stack.way:
                    self._add(spot)
        self.blocks = [
            (spot.code, block)
            for spot in inline
            if (block := block_around(spot, self.anchors[spot.code])) is not None
        ]

    def _add(self, spot: Spot) -> None:
        self.anchors.setdefault(spot.code, set()).add(spot.line)

    def __contains__(self, spot: Spot) -> bool:
        return spot.code in self.anchors

    def trains(self, spot: Spot) -> bool:
        """Whether a backward pass goes through this line, be it in a module or a plain function."""
        return (spot.code.co_filename, spot.line) in self._trained

    def evaluation(self, stack: Stack) -> Spot | None:
        """Where the spine calls the evaluation that this sample is part of."""
        for spot in stack.spots:
            for code, block in self.blocks:
                if spot.code is code and spot.line in block:
                    return Spot(code, block.first)
        by_mode = stack.evaluates and stack.spots and stack.phase not in _FILES
        if by_mode or any(spot.code in self._evaluating for spot in stack.spots):
            return self._entrance(stack)
        return None

    def _entrance(self, stack: Stack) -> Spot:
        """Where the evaluation is called; a framework trains and evaluates in one line, and calls
        something of the user's for it.
        """
        outer = next((spot for spot in stack.spots if spot in self), stack.spots[-1])
        if outer.line not in self.anchors.get(outer.code, ()):
            return outer
        beside = [spot for spot in stack.way if spot not in self]
        return beside[-1] if beside else outer


def group_samples(samples: Mapping[Stack, float], spine: Spine) -> dict[str, Group]:
    groups: dict[str, Group] = {}
    for stack, seconds in samples.items():
        fresh = _group(stack, spine)
        group = groups.setdefault(fresh.key, fresh)
        group.seconds += seconds
        group.torch_seconds += seconds if stack.in_torch else 0.0
        if stack.beside is not None:
            group.besides[stack.beside] += seconds
        spot = _innermost(stack, group.phase)
        if spot is not None:
            group.spots[spot] += seconds
    return groups


def _innermost(stack: Stack, phase: Phase) -> Spot | None:
    """Inside loader and optimiser only code of the user's own counts; the way there is no cause."""
    if phase in ("input", "optimizer"):
        return stack.spots[0] if stack.inside else None
    return stack.spots[0] if stack.spots else None


def _group(stack: Stack, spine: Spine) -> Group:
    if stack.collects:
        return Group(GARBAGE, "host")
    head = spine.evaluation(stack)
    if head is not None:
        return Group(f"evaluation {_name(head)}", "evaluation", head=head)
    phase = stack.phase
    if not stack.spots:
        return Group(f"{phase} outside", phase)
    inner = stack.spots[0]
    if stack.starts and stack.way:
        return Group(STARTS, phase, head=stack.way[0])
    if phase in ("input", "optimizer", "backward"):
        return Group(phase, phase)
    if phase == "host" and spine.trains(inner):
        phase = "forward"
    if phase == "host":
        called = [spot for spot in stack.spots if spot not in spine]
        if called:
            code = called[-1].code
            return Group(
                f"function {code.co_name} {code.co_filename}:{code.co_firstlineno}", phase, code
            )
    span = loop_around(inner, spine.anchors.get(inner.code, ()))
    if span is None:
        return Group(f"{phase} line {_name(inner)}", phase)
    return Group(
        f"{phase} loop {inner.code.co_filename}:{span.first}-{span.last}", phase, span=span
    )


def _are_layers(lines: Sequence[LineWork]) -> bool:
    """Whether its runs are layers, each fed by the one before, and not elements of a tensor."""
    trips = sum(line.trips for line in lines)
    return bool(trips) and sum(len(line.depths) for line in lines) >= LAYERS_SHARE * trips


def _name(spot: Spot) -> str:
    return f"{spot.code.co_filename}:{spot.line}"


def _framework(group: Group) -> str:
    """The function of a framework in which most of the group's time passes, if most of it does."""
    if not group.besides or sum(group.besides.values()) < group.seconds / 2:
        return ""
    code = max(group.besides, key=lambda code: group.besides[code])
    name = code.co_filename.rpartition(f"site-packages{os.sep}")[2]
    return f"{name}:{code.co_firstlineno} in {code.co_name}"


class Judge:
    """Joins samples and mapped steps to suspects."""

    def __init__(
        self,
        sources: Sources,
        steps: Sequence[StepWork],
        per_step: float,
        anchors: Mapping[CodeType, set[int]],
    ) -> None:
        self._sources = sources
        self._per_step = per_step  # makes sampled seconds those of one plain step
        self._steps = steps
        self._anchors = anchors
        self._repeated = find_repeated(list(steps))
        self._feeding = {spot for step in steps for spot in step.feeding}
        lines = [line for step in steps for line in step.lines.values()]
        self._backward_total = sum(line.backward_seconds for line in lines)

    def suspect(self, group: Group, backward_seconds: float) -> Suspect | None:
        """`backward_seconds` is what the whole backward pass of a step takes."""
        hottest = group.hottest
        if hottest is None:
            return None
        # What else its lines do is told with them.
        places = self._places(group) if group.key != GARBAGE else set()
        at = list(self._work(places))
        work = [(group.parts.get(place, 1.0), line) for place, line in at]
        steps = max(1, len(self._steps))

        def per_step(amount: Callable[[LineWork], float]) -> float:
            return sum(part * amount(line) for part, line in work) / steps

        backward = sum(
            group.backward_parts.get(place, 1.0) * line.backward_seconds for place, line in at
        )
        share = backward / self._backward_total if self._backward_total else 0.0
        return Suspect(
            key=group.key,
            site=replace(self._sources.site(hottest), framework=_framework(group)),
            phase=group.phase,
            seconds=group.seconds * self._per_step,
            torch_seconds=group.torch_seconds * self._per_step,
            backward_seconds=backward_seconds * share if group.phase == "forward" else 0.0,
            operator_seconds=per_step(lambda line: line.forward_seconds + line.converted_seconds),
            device_seconds=per_step(
                lambda line: line.device_seconds + line.device_backward_seconds
            ),
            launches=round(per_step(lambda line: line.launches)),
            trips=max((line.trips for _, line in work), default=0),
            syncs=round(per_step(lambda line: line.syncs)),
            updates=round(per_step(lambda line: line.updates)),
            flops=round(per_step(lambda line: line.flops)),
            moved_bytes=round(per_step(lambda line: line.moved_bytes)),
            new_bytes=round(per_step(lambda line: line.new_bytes)),
            copy_seconds=per_step(lambda line: line.copy_seconds),
            converted_seconds=per_step(lambda line: line.converted_seconds),
            snapshot_seconds=per_step(lambda line: line.snapshot_seconds),
            layers=group.phase == "forward" and _are_layers([line for _, line in at]),
            repeats=self._repeats(places) if group.repeats is None else group.repeats,
            feeds=self._feeds(group),
        )

    def split(self, group: Group) -> list[Group]:
        """Work that gives the same results in every step, and the other work of its lines.

        A loop stays whole: what it repeats would go with it.
        """
        shares = {place: each.share for place, each in self._repeated.items()}
        backward = {place: each.backward_share for place, each in self._repeated.items()}
        again = {
            spot: seconds * shares[spot.place]
            for spot, seconds in group.spots.items()
            if spot.place in shares
        }
        seconds = sum(again.values())
        whole = not seconds or group.span is not None or group.phase not in ("host", "forward")
        whole = whole or group.key == GARBAGE
        if whole or self._repeats({spot.place for spot in group.spots}):
            return [group]
        part = seconds / sum(group.spots.values())
        rest = {spot: each - again.get(spot, 0.0) for spot, each in group.spots.items()}
        return [
            replace(
                group,
                seconds=group.seconds - seconds,
                torch_seconds=group.torch_seconds * (1 - part),
                spots=rest,
                parts={place: 1 - share for place, share in shares.items()},
                backward_parts={place: 1 - share for place, share in backward.items()},
                repeats=False,
            ),
            Group(
                f"repeated {group.key}",
                group.phase,
                seconds=seconds,
                torch_seconds=group.torch_seconds * part,
                spots=again,
                parts=shares,
                backward_parts=backward,
                repeats=self._are_many({spot.place for spot in again}),
            ),
        ]

    def _places(self, group: Group) -> set[Place]:
        places = {spot.place for spot in group.spots}
        if group.span is not None:
            paths = {place.path for place in places}
            mapped = {place for step in self._steps for place in step.lines if place is not None}
            places |= {p for p in mapped if p.path in paths and p.line in group.span}
        return places

    def _work(self, places: set[Place]) -> Iterator[tuple[Place, LineWork]]:
        for step in self._steps:
            for place, line in step.lines.items():
                if place is not None and place in places:
                    yield place, line

    def _repeats(self, places: set[Place]) -> bool:
        """Whether nearly all that is made there is the same in every step."""
        made = [(place, line) for place, line in self._work(places) if line.results]
        total = sum(line.forward_seconds for _, line in made)
        same = sum(
            line.forward_seconds * self._repeated[place].share
            for place, line in made
            if place in self._repeated
        )
        return self._are_many(places) and same >= REPEATED_SHARE * total

    def _are_many(self, places: set[Place]) -> bool:
        elements = sum(each.elements for place, each in self._repeated.items() if place in places)
        return elements >= FEWEST_REPEATED_ELEMENTS

    def _feeds(self, group: Group) -> bool:
        if group.phase != "host" or group.key == GARBAGE:
            return False
        if group.code is not None:
            return any(spot.code is group.code for spot in self._feeding)
        # A framework that is called to train or generate makes the input in the same line.
        calls_model = any(
            spot.line in self._anchors.get(spot.code, ()) for spot in self._feeding & {*group.spots}
        )
        return bool(self._feeding & {*group.spots}) and not (calls_model and _framework(group))
