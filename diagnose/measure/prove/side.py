"""How does one side run? The unmodified script, which waits between two steps for its turn.

    python -m diagnose.measure.prove.side

Whoever starts it says what to run, asks for so many steps at a time, and stops the whole process
group while it is the other side's turn.
"""

from __future__ import annotations

import os
import statistics
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.utils.data.dataloader as loading

from diagnose.measure.machine.describe import identities, probe
from diagnose.measure.process import Parent
from diagnose.measure.prove.changes import Change
from diagnose.measure.prove.values import Values, seed_everything
from diagnose.measure.script.passes import Pass, Passes
from diagnose.measure.script.patches import Patches
from diagnose.measure.script.plan import Timetable
from diagnose.measure.script.program import NoScript, run_program
from diagnose.measure.script.ranks import Ranks
from diagnose.measure.script.watch.seen import Picture
from diagnose.measure.script.watch.settle import settle
from diagnose.measure.script.writers import Writers
from diagnose.measure.words import one_sentence
from diagnose.records.codec import from_dict, to_dict
from diagnose.records.prove import EqualRun
from diagnose.records.script import PHASES, Options

_LEAVE = os._exit
_NOTHING: tuple[str, Any] = ("", None)  # more is wanted
STEADY_SHARE = 0.75  # the last batch of an epoch may have fewer samples
TYPES = {torch.float32: "float32", torch.float64: "float64", torch.bfloat16: "bfloat16"}


@dataclass(frozen=True)
class Task:
    """What a side is to run."""

    name: str
    script: str
    arguments: tuple[str, ...] = ()
    equal_steps: int = 0  # so many are read before the first turn
    nudge: float = 0.0
    change: str = ""
    aside: str = ""  # where files are kept that it changes
    # Folders of the user's, and the side's own copies of them.
    copies: Mapping[str, str] = field(default_factory=dict)


class Side(Passes):
    """Runs inside the script's own process, between its steps."""

    def __init__(self, task: Task, parent: Parent) -> None:
        patches = Patches()
        super().__init__(patches, Timetable(Options(), Ranks()), self._vanish, self._vanish)
        self._task, self._parent = task, parent
        self._requests = parent.requests()
        self._here = os.getpid(), threading.get_ident()
        self._told = False
        self._request: tuple[str, Any] | None = None  # that is not answered yet
        self._prefetched = 0  # batches that workers may have made ahead
        watch = self.instruments
        self._change = Change(task.change, watch) if task.change else None
        self._reading = patches.part()
        self._values = Values(watch.boundary, watch.forwards, task.nudge)

    def run(self) -> None:
        patches = self.instruments.patches
        if self._change is not None:
            self._change.install(patches)
        if self._task.equal_steps:
            self._values.install(self._reading)
        patches.put(loading._MultiProcessingDataLoaderIter, "__init__", self._noting_workers)
        patches.put(os, "_exit", self._telling)
        self.start()
        seed_everything()
        try:
            end = run_program(Path(self._task.script), self._task.arguments, lambda error: False)
        except NoScript as error:
            self._parent.tell("failed", str(error))
            return
        if self.seen.fault:
            self._parent.tell("failed", f"could not be watched: {self.seen.fault}")
            return
        self._tell_end(end.error or (f"code {end.code}" if end.code else ""))

    def _tell_end(self, trouble: str) -> None:
        if trouble:
            self._parent.tell("failed", f"ended with {trouble}")
            return
        values = self._describe_values() if self._reading.active else None
        self._parent.tell("ended", {"values": values, "steps": self.seen.steps})

    def _telling(self, original: Any) -> Any:
        """`os._exit` leaves at once, past everything that could still be said."""

        def leave(status: int) -> None:
            if self._here == (os.getpid(), threading.get_ident()):
                self._tell_end(f"code {status}" if status else "")
            original(status)

        return leave

    def _run(self) -> Pass:
        # Steps that turn out to be of another kind, as of a second optimizer, begin again.
        if self._task.equal_steps and not self._told:
            yield from self._compare()
        self._told = True
        self.instruments.device.reset_peak()  # of the start
        while True:
            if self._request is None:
                self._request = next(self._requests, _NOTHING)
            kind, content = self._request
            if kind == "steps":
                yield from self._take_turn(content)
            elif kind == "sample":
                yield from self._sample_lines(content)
            elif kind == "describe":
                self._parent.tell("machine", self._describe_machine())
            elif kind == "memory":
                self._parent.tell("memory", asdict(self.instruments.device.peak_bytes()))
            elif kind == "lines":
                yield from self._map(may_wait=True)
                self._parent.tell("lines", self._describe_lines())
            else:
                self._vanish()
            self._request = None

    def _compare(self) -> Pass:
        self._values.begin()
        for number in range(self._task.equal_steps):
            if number:
                yield
            self._values.end_step()
        self._parent.tell("values", self._describe_values())
        self._reading.undo()

    def _take_turn(self, content: Sequence[int]) -> Pass:
        settle, steps = content
        for _ in range(settle):
            yield
        self.instruments.device.synchronize()
        each = []
        began = time.monotonic()
        for _ in range(steps):
            yield
            each.append(self.seen.step_seconds)
        self.instruments.device.synchronize()
        self.seen.plain += each
        window = {
            "began": began,
            "seconds": time.monotonic() - began,
            "each": each,
            "prefetched": self._prefetched,
        }
        self._parent.tell("window", window)

    def _sample_lines(self, steps: int) -> Pass:
        seen = self.seen
        if not seen.early_steps:
            self._install(self._patches)
            settle(self.instruments, self._patches)
        sampling = self._patches.part()
        self.instruments.stacks.switch_on(sampling, into=seen.early)
        for _ in range(steps):
            yield
            seen.early_steps += 1
            seen.sampled_seconds += seen.step_seconds
            seen.ends.update(self.instruments.sources.spots(self._frame))
        sampling.undo()
        self._parent.tell("sampled", None)

    def _describe_values(self) -> dict[str, Any]:
        values, coarsest = self._values, self._values.coarsest
        counts = [each for each in values.samples if each]
        usual = float(statistics.median(counts)) if counts else 0.0
        run = EqualRun(
            name=self._task.name,
            values={name: tuple(each) for name, each in values.values.items()},
            samples=usual,
            steady=sum(each == usual for each in counts) > STEADY_SHARE * len(counts),
            shapes=values.shapes,
            epsilon=torch.finfo(coarsest).eps,
            precision=TYPES.get(coarsest, str(coarsest).removeprefix("torch.")),
            changed="yes" if self._change is None else self._change.met,
        )
        return to_dict(run)

    def _describe_lines(self) -> dict[str, Any]:
        picture = Picture(self.seen, self.instruments)
        suspects = sorted(
            (suspect for _, suspect in picture.suspects),
            key=lambda each: -each.seconds - each.backward_seconds,
        )
        return {
            "suspects": [asdict(each) for each in suspects],
            "phases": {each: picture.phases[each] for each in PHASES if picture.phases.get(each)},
        }

    def _describe_machine(self) -> dict[str, Any]:
        device = self.instruments.device
        return {
            "identities": [to_dict(each) for each in identities(device.kind)],
            "machine": to_dict(probe(device.kind)),
            "is_fake": device.is_fake,
            "boundary": self.instruments.boundary.kind,
            "strangers": self._find_strangers(),
        }

    def _find_strangers(self) -> list[str]:
        """Modules that came from the user's own folders, not from the side's copies of them."""
        files = [getattr(each, "__file__", None) for each in list(sys.modules.values())]
        sources = self.instruments.sources.lines
        return sorted(
            {
                os.path.basename(file)
                for file in files
                if file
                and any(file.startswith(folder + os.sep) for folder in self._task.copies)
                and not any(file.startswith(copy + os.sep) for copy in self._task.copies.values())
                and sources.name(file) is not None
            }
        )

    def _noting_workers(self, original: Any) -> Any:
        def make(iterator: Any, loader: Any) -> None:
            ahead = loader.num_workers * (loader.prefetch_factor or 0)
            self._prefetched = max(self._prefetched, ahead)
            original(iterator, loader)

        return make

    def _vanish(self) -> None:
        """Nobody wants more; the script must not see this as an error of its own."""
        _LEAVE(0)


def _use_copies(copies: Mapping[str, str]) -> None:
    """What would be imported from a folder of the user's comes from the side's copy of it."""
    for number, entry in enumerate(sys.path):
        for folder, copy in copies.items():
            if entry == folder or entry.startswith(folder + os.sep):
                sys.path[number] = copy + entry[len(folder) :]
                break


def main() -> None:
    parent = Parent()
    kind, content = next(parent.requests(), ("", None))
    if kind != "run":
        return
    task = from_dict(Task, content)
    _use_copies(task.copies)
    Writers(task.aside)  # what the script does to linked files is undone by who started this
    try:
        Side(task, parent).run()
    except Exception as error:  # a fault of this suite, not of the script
        parent.tell("failed", f"{type(error).__name__}: {one_sentence(str(error))}")
        raise


if __name__ == "__main__":
    main()
