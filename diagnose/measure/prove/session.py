"""How are two sides compared? Equality first, then the speed block by block, then the lines.

Both processes stay for the whole comparison and take turns between steps. Only one works at a
time: the other's whole process group is stopped, so that its workers do nothing ahead.
"""

from __future__ import annotations

import math
import random
import secrets
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from itertools import pairwise
from typing import Any

from diagnose.measure.accuracy import describe_here
from diagnose.measure.gpu.power import PowerMeter
from diagnose.measure.prove.racer import WARMUP_STEPS, Ended, Failed, Racer
from diagnose.measure.prove.sides import Copy, Request, Sides, open_sides
from diagnose.measure.ranks.growth import make_header
from diagnose.records.codec import from_dict
from diagnose.records.header import Header, Reading
from diagnose.records.prove import (
    AFTER,
    AGAIN,
    BEFORE,
    NUDGED,
    EqualRun,
    Options,
    ProveRecord,
    SideFacts,
    Window,
    blocks_of,
    find_batch_ratio,
)
from diagnose.records.script import Suspect
from diagnose.records.sequential import decide, passes_gate, ratio_interval

# Long enough that an interruption by the system does not decide a window.
WINDOW_SECONDS = 0.25
WARMUP_SECONDS = 1.5
FEWEST_WARMUP_STEPS = 5
MOST_WARMUP_STEPS = 60
# Of a window: steps at its head that are not timed, while caches are the other side's.
SETTLE_SHARE = 0.1
# A step that takes so many times as long as usual has something that the others have not.
RARE_STEP = 1.5
LINES_SECONDS = 1.5
FEWEST_SAMPLED_STEPS = 12
MOST_SAMPLED_STEPS = 200
SAMPLED_TURNS = 3
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

    A pair is handed over as soon as it is known; `analyze.prove.prove` says what it means. A twin
    that fails, hangs or finds nothing to change loses its own trial only: `record.missing` says
    why. Raises Refused if the script is not there. Nothing is left behind, also after Ctrl-C.
    """
    with open_sides(Request((script,), arguments=tuple(arguments))) as sides:
        for change in changes:
            session = Session(sides.with_change(change), options, show)
            session.run()
            yield change, session.record


class Session:
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
        for racer in (again, nudged):
            runs.append(self._read(racer))
            racer.end()
        self._add(runs=tuple(runs))

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
        """What the machine is; a process that has ended is started again for it."""
        ready = self._retried(self._racers[BEFORE], "describe", None)
        stranger = [
            f"{name} was imported from your folder, not from the copy of a side: both sides ran it"
            for name in ready["strangers"][:1]
        ]
        self._header = make_header(ready, "full")
        self._add(boundary=ready["boundary"], notes=(*self._sides.notes, *stranger))
        if ready["identities"]:
            meter = PowerMeter(secrets.token_hex(8))
            stack.callback(meter.stop)
            meter.watch(ready["identities"])
            self._meter = meter

    def _retried(self, racer: Racer, kind: str, content: object) -> Any:
        try:
            return racer.ask(kind, content)
        except Ended:
            racer.restart()
        try:
            return racer.ask(kind, content)
        except Ended:
            raise Failed(f"{racer.copy.title} has too few steps to be timed") from None

    def _time(self) -> None:
        settle, steps = self._plan()
        began = time.monotonic()
        block = 0
        while True:
            self._show(f"block {block + 1}")
            windows = [
                self._take_window(block, name, settle[name], steps[name])
                for name in self._order.sample([BEFORE, BEFORE, AFTER], 3)
            ]
            if any(window is None for window in windows):
                settle, steps = self._fit(settle, steps)
            else:
                self._add(windows=(*self._windows, *filter(None, windows)))
                block += 1
                if self._is_decided():
                    return
            # A script that has to be started for every window may take longer for the first block.
            allowed = self._options.seconds * (1 if block else LONGEST_FIRST_BLOCK)
            if time.monotonic() - began >= allowed:
                return

    def _fit(
        self, settle: dict[str, int], steps: dict[str, int]
    ) -> tuple[dict[str, int], dict[str, int]]:
        """Windows that fit between the warm-up and the end of a run."""
        usable = min(each.length for each in self._racers.values()) - WARMUP_STEPS
        share = min(1.0, usable / max(settle[name] + steps[name] for name in steps))
        if usable < 2:
            raise Failed("a run of the script has too few steps to be timed")
        return _scaled(settle, share), _scaled(steps, share)

    def _is_decided(self) -> bool:
        interval = ratio_interval(blocks_of(self._windows, self._ratio))
        gate = self._options.fail_if_slower
        is_open = gate is not None and passes_gate(interval, gate) is None
        return decide(interval) != "INCONCLUSIVE" and not is_open

    def _plan(self) -> tuple[dict[str, int], dict[str, int]]:
        """How many steps a turn has: untimed ones, and those of a window."""
        self._show("warm-up")
        usual, ahead, cadence = 0.0, 0, 1
        for racer in self._racers.values():
            each: list[float] = []
            # What ends soon is started for every window, and is no warmer for more steps.
            while len(each) < FEWEST_WARMUP_STEPS or (
                sum(each) < WARMUP_SECONDS and len(each) < MOST_WARMUP_STEPS < racer.length
            ):
                window = self._warm(racer, min(MOST_WARMUP_STEPS, max(5, len(each))))
                each += window["each"]
                ahead = max(ahead, window["prefetched"])
            usual = max(usual, statistics.median(each))
            cadence = math.lcm(cadence, find_cadence(each))
        steps = max(math.ceil(WINDOW_SECONDS / usual), ahead + 1)
        steps = cadence * math.ceil(steps / cadence)
        settle = max(1, round(SETTLE_SHARE * steps))
        self._ratio = find_batch_ratio(self._known["runs"])
        times = {BEFORE: max(1, round(1 / self._ratio)), AFTER: max(1, round(self._ratio))}
        return self._fit(
            {name: settle * each for name, each in times.items()},
            {name: steps * each for name, each in times.items()},
        )

    def _warm(self, racer: Racer, steps: int) -> dict[str, Any]:
        for _ in range(2):
            try:
                return racer.run_steps(0, steps)
            except Ended:
                racer.start(racer.copy.name)
        for fewer in (3, 1):
            try:
                return racer.run_steps(0, fewer)
            except Ended:
                racer.start(racer.copy.name)
        raise Failed(f"{racer.copy.title} has too few steps to be timed")

    def _take_window(self, block: int, name: str, settle: int, steps: int) -> Window | None:
        racer = self._racers[name]
        for _ in range(2):
            try:
                found = racer.run_steps(settle, steps)
            except Ended:
                with suppress(Ended):
                    racer.restart()
                    continue
                return None
            self._timed[name].append((found["began"], found["began"] + found["seconds"]))
            return Window(block, name, steps, found["seconds"])
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
            for _ in range(SAMPLED_TURNS):
                for name, racer in self._racers.items():
                    self._retried(racer, "sample", math.ceil(steps[name] / SAMPLED_TURNS))
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


def find_cadence(each: Sequence[float]) -> int:
    """Every so many steps there is one that takes longer; 1 where they are all alike."""
    usual = statistics.median(each)
    rare = [place for place, seconds in enumerate(each) if seconds > RARE_STEP * usual]
    gaps = {later - earlier for earlier, later in pairwise(rare)}
    return gaps.pop() if len(gaps) == 1 and len(rare) > 2 else 1


def _scaled(steps: dict[str, int], share: float) -> dict[str, int]:
    return {name: max(1, int(each * share)) for name, each in steps.items()}


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
