"""How are two sides compared? Equality first, then the speed block by block, then the lines.

Both processes stay for the whole comparison and take turns between steps. Only one works at a
time: the other's whole process group is stopped, so that its workers do nothing ahead.
"""

from __future__ import annotations

import math
import os
import random
import secrets
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any

from diagnose.measure.accuracy import describe_here
from diagnose.measure.gpu.power import PowerMeter
from diagnose.measure.prove.racer import Ended, Failed, Racer
from diagnose.measure.prove.sides import Copy, Request, Sides, open_sides
from diagnose.measure.prove.turns import Turn, fit_turns, plan_turns
from diagnose.measure.ranks.growth import make_header
from diagnose.records.codec import from_dict
from diagnose.records.header import Header, Reading
from diagnose.records.prove import (
    AFTER,
    AGAIN,
    BEFORE,
    NUDGED,
    STARTS,
    EqualRun,
    Options,
    ProveRecord,
    SideFacts,
    Window,
    find_batch_ratio,
    speed_interval,
)
from diagnose.records.script import Suspect
from diagnose.records.sequential import decide, passes_gate

LINES_SECONDS = 1.5
FEWEST_SAMPLED_STEPS = 12
MOST_SAMPLED_STEPS = 200
SAMPLED_TURNS = 6
LONGEST_FIRST_BLOCK = 4

Show = Callable[[str], None]


def try_options(
    script: str,
    arguments: Sequence[str],
    changes: Sequence[str],
    options: Options,
    show: Show = lambda text: None,
) -> Iterator[tuple[str, ProveRecord]]:
    """Each change that has a name (`CHANGES`), in a twin of the script beside it.

    A pair is handed over as soon as it is known; `analyze.prove.proof` says what it means. A twin
    that fails, hangs or finds nothing to change loses its own trial only: `record.missing` says
    why. Raises Refused if the script is not there. Nothing is left behind, also after Ctrl-C.
    """
    with open_sides(Request((script,), arguments=tuple(arguments))) as sides:
        for change in changes:
            referee = Referee(sides.with_change(change), options, show)
            referee.run()
            yield change, referee.record


class Referee:
    """Compares two sides; `record` is what is known so far, whatever ends it."""

    def __init__(self, sides: Sides, options: Options, show: Show) -> None:
        self._sides, self._options, self._show = sides, options, show
        self._racers: dict[str, Racer] = {}
        self._meter: PowerMeter | None = None
        self._ratio = 1.0  # samples of a step before, by those of a step after
        self._order = random.Random()
        self._timed: dict[str, list[tuple[float, float]]] = {BEFORE: [], AFTER: []}
        self._header: Header | None = None
        self._known: dict[str, Any] = {
            "before": _facts(sides.before),
            "after": _facts(sides.after),
            "edits": sides.edits,
            "arguments": sides.arguments,
            "notes": sides.notes,
        }

    @property
    def record(self) -> ProveRecord:
        header = self._header or describe_here("full")
        return ProveRecord(header=header, options=self._options, **self._known)

    def run(self) -> None:
        with ExitStack() as stack:
            for copy in (self._sides.before, self._sides.after):
                self._racers[copy.name] = stack.enter_context(self._racer(copy))
            try:
                self._compare(stack)
                self._describe(stack)
                self._time()
                self._find_costs()
                if not self._sides.is_one:
                    self._find_lines()
            except Failed as error:
                self._add(missing=str(error))

    def _racer(self, copy: Copy) -> Racer:
        return Racer(copy, self._sides.arguments, self._options.timeout)

    def _add(self, **known: Any) -> None:
        self._known.update(known)

    @property
    def _windows(self) -> tuple[Window, ...]:
        found: tuple[Window, ...] = self._known.get("windows", ())
        return found

    # --- do they compute the same? ---

    def _compare(self, stack: ExitStack) -> None:
        steps = self._options.equal_steps
        self._show("the same results?")
        for racer in self._racers.values():
            racer.start(racer.copy.name, steps)
        runs = [self._read(racer) for racer in self._racers.values()]
        self._add(runs=tuple(runs))
        broken = [each for each in runs if each.failed]
        if broken:
            raise Failed(self._explain(broken[0]))
        if not runs[1].changed:
            raise Failed(f"--with {self._sides.after.change} found nothing to change")
        if runs[0].is_same(runs[1]):
            return
        epsilon = max(each.epsilon for each in runs)
        again, nudged = (stack.enter_context(self._racer(self._sides.before)) for _ in range(2))
        again.start(AGAIN, steps)
        nudged.start(NUDGED, steps, epsilon)
        scales = [self._read_beside(again, 0.0), self._read_beside(nudged, epsilon)]
        self._add(runs=(*runs, *scales))

    def _read_beside(self, racer: Racer, nudge: float) -> EqualRun:
        """A third process may be one too many for the memory: then it runs alone."""
        found = self._read(racer)
        if found.failed:
            for each in self._racers.values():
                each.end()
            racer.start(racer.name, self._options.equal_steps, nudge)
            found = self._read(racer)
        racer.end()
        for each in self._racers.values():
            if each.is_ended:
                each.start(each.copy.name)
        return found

    def _read(self, racer: Racer) -> EqualRun:
        try:
            return racer.read_values()
        except Failed as error:
            return EqualRun(racer.name, {}, failed=str(error))

    def _explain(self, broken: EqualRun) -> str:
        """Whether a side fails by itself, or only beside the other."""
        racer = self._racers[broken.name]
        for each in self._racers.values():
            each.end()
        racer.start(broken.name, self._options.equal_steps)
        if self._read(racer).failed:
            return broken.failed
        return (
            f"{broken.failed}; alone it runs, but not beside the other side: does it need a port, "
            "a lock or most of the memory?"
        )

    # --- which is faster? ---

    def _describe(self, stack: ExitStack) -> None:
        """What the machine is; a process that has ended is started again for it.

        Both sides are asked, so that nothing was done in one of them only.
        """
        ready, _ = (self._retried(each, "describe", None) for each in self._racers.values())
        self._header = make_header(ready, "full")
        both = "was imported from your folder, not from the copy of a side: both sides ran it"
        edited = {os.path.basename(each.before_file) for each in self._sides.edits}
        for name in ready["strangers"]:
            if name in edited:
                raise Failed(f"{name}, which differs, {both}; is your folder installed (pip -e)?")
        stranger = [f"{name} {both}" for name in ready["strangers"][:1]]
        self._add(boundary=ready["boundary"], notes=(*self._sides.notes, *stranger))
        if ready["identities"]:
            meter = PowerMeter(secrets.token_hex(8))
            stack.callback(meter.stop)
            meter.watch(ready["identities"])
            self._meter = meter

    def _retried(self, racer: Racer, kind: str, content: object) -> Any:
        with suppress(Ended):
            return racer.ask(kind, content)
        try:
            racer.restart()
            return racer.ask(kind, content)
        except Ended:
            raise Failed(f"{racer.copy.title} has too few steps to be timed") from None

    def _time(self) -> None:
        """What one pair of processes shows counts if a second one, started anew, shows it too."""
        left = self._options.seconds
        self._ratio = find_batch_ratio(self._known["runs"])
        for start in range(STARTS):
            if start:
                self._show("confirming it in new processes")
                for racer in reversed(self._racers.values()):
                    racer.start(racer.copy.name)
            self._show("warm-up")
            turns = plan_turns(self._racers, self._ratio)
            took = self._time_start(start, left, turns)
            if not self._windows:
                raise Failed("no block came to its end in time; allow more --seconds")
            if not any(self._answers(start)):
                return
            # A verdict that came late may take as long again.
            left = max(left - took, took)

    def _time_start(self, start: int, seconds: float, turns: dict[str, Turn]) -> float:
        """Blocks until they prove something or the time is up; how long that was."""
        began = time.monotonic()
        blocks = 0
        while True:
            self._show(f"block {blocks + 1}")
            taken = [self._take_window(start, name, turns[name]) for name in self._draw_order()]
            whole = [each for each in taken if each is not None]
            if len(whole) < len(taken):
                turns = fit_turns(self._racers, turns)
            else:
                self._add(windows=(*self._windows, *(window for window, _ in whole)))
                for window, when in whole:
                    self._timed[window.side].append(when)
                blocks += 1
            # A script that has to be started for every window may take longer for the first block.
            allowed = seconds * (1 if blocks else LONGEST_FIRST_BLOCK)
            took = time.monotonic() - began
            if took >= allowed or all(self._answers(start)):
                return took

    def _draw_order(self) -> list[str]:
        """Three windows, two of them of the side that had fewer: a script may slow down by itself.

        With two windows of the same side in every block it would always be further on.
        """
        sides = [BEFORE, AFTER]
        counts = {side: sum(each.side == side for each in self._windows) for side in sides}
        fewer = [side for side in sides if counts[side] == min(counts.values())]
        return self._order.sample([*sides, self._order.choice(fewer)], 3)

    def _answers(self, start: int) -> list[bool]:
        """Whether this pair of processes has a verdict, and an answer to a gate if there is one."""
        windows = [each for each in self._windows if each.start == start]
        if not windows:
            return [False]
        interval = speed_interval(windows, self._ratio)
        gate = self._options.fail_if_slower
        asked = [] if gate is None else [passes_gate(interval, gate) is not None]
        return [decide(interval) != "INCONCLUSIVE", *asked]

    def _take_window(
        self, start: int, name: str, turn: Turn
    ) -> tuple[Window, tuple[float, float]] | None:
        """And when it began and ended; None if a run of the script is too short for it."""
        racer = self._racers[name]
        for _ in range(2):
            try:
                found = racer.run_steps(turn.settle, turn.steps)
            except Ended:
                with suppress(Ended):
                    racer.restart()
                    continue
                return None
            block, seconds = len(self._windows) // 3, found["seconds"]
            when = found["began"], found["began"] + seconds
            return Window(block, name, turn.steps, seconds, start), when
        return None

    # --- where is the time? ---

    def _find_costs(self) -> None:
        """Memory and energy, before anything is sampled."""
        for name, racer in self._racers.items():
            memory = from_dict(Reading, self._retried(racer, "memory", None))
            facts = replace(self._known[name], memory_bytes=memory)
            self._add(**{name: replace(facts, joules_per_step=self._joules(name))})

    def _find_lines(self) -> None:
        """Which lines take it, sampled in turns as well."""
        self._show("which line?")
        usual = {
            name: statistics.median(
                each.seconds / each.steps for each in self._windows if each.side == name
            )
            for name in self._racers
        }
        steps = {
            name: min(MOST_SAMPLED_STEPS, max(FEWEST_SAMPLED_STEPS, LINES_SECONDS / seconds))
            for name, seconds in usual.items()
        }
        try:
            turn = list(self._racers.items())
            for _ in range(SAMPLED_TURNS):
                for name, racer in turn:
                    self._retried(racer, "sample", math.ceil(steps[name] / SAMPLED_TURNS))
                turn.reverse()
            for name, racer in self._racers.items():
                found = self._retried(racer, "lines", None)
                self._add(**{name: _with_lines(self._known[name], racer.copy, found)})
        except Failed as error:
            for name in self._racers:
                self._add(**{name: replace(self._known[name], lines_reason=str(error))})

    def _joules(self, name: str) -> Reading:
        if self._meter is None:
            return Reading(None, "the CPU has no NVML")
        steps = sum(each.steps for each in self._windows if each.side == name)
        found = self._meter.joules_during(self._timed[name])
        return found if found.value is None else Reading(found.value / steps, found.reason)


def _facts(copy: Copy) -> SideFacts:
    script = copy.show(str(copy.script))
    return SideFacts(copy.title, script, commit=copy.commit, tree=copy.tree)


def _with_lines(facts: SideFacts, copy: Copy, found: dict[str, Any]) -> SideFacts:
    suspects = [from_dict(Suspect, each) for each in found["suspects"]]
    named = tuple(
        replace(
            each,
            key=each.key.replace(each.site.file, file).replace(f"{copy.cwd}/", ""),
            site=replace(each.site, file=file),
        )
        for each in suspects
        for file in [copy.show(each.site.file)]
    )
    return replace(facts, suspects=named, phases=found["phases"])
