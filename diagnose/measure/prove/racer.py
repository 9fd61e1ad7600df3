"""Who holds a side? Starts its process, lets it go on only for its turn, starts it again."""

from __future__ import annotations

import signal
import sys
from types import TracebackType
from typing import Any

from diagnose.measure.machine.out_of_memory import ONE_PROCESS, is_held_by_another
from diagnose.measure.process import Died, Hung, Process, own_module
from diagnose.measure.prove.sides import Copy
from diagnose.measure.script.trackers import tracker_variables
from diagnose.measure.words import one_sentence
from diagnose.records.codec import from_dict
from diagnose.records.prove import EqualRun

MODULE = "diagnose.measure.prove.side"
# Steps that a side which was started again takes before it is timed.
WARMUP_STEPS = 5


_OUT_OF_MEMORY = (
    "OutOfMemory",
    "MemoryError",
    "allocate memory",  # of torch on the CPU, and of the system
    signal.SIGKILL.name,
)


class Ended(Exception):
    """The script of a side came to its end, as it may."""

    def __init__(self, values: Any, steps: int) -> None:
        super().__init__(values, steps)
        self.values, self.steps = values, steps


class Failed(Exception):
    """A side cannot go on; the message begins with the name of the side."""


class Racer:
    """One side, in one process after the other; outside its turns it is stopped."""

    def __init__(self, copy: Copy, arguments: tuple[str, ...], timeout: float) -> None:
        self.copy = copy
        self.name = copy.name  # of the run
        self._arguments, self._timeout = arguments, timeout
        self._process: Process | None = None
        self._task: dict[str, Any] | None = None  # that it has not been told yet
        self._ended: Ended | None = None  # until it is started again
        self.length = sys.maxsize  # in steps, of the shortest run that came to its end

    def __enter__(self) -> Racer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()

    def start(self, name: str, equal_steps: int = 0, nudge: float = 0.0) -> None:
        """From the script's first line; whatever ran before is ended."""
        self.end()
        self.name = name
        self._ended = None
        # The same order of sets in every run.
        variables = {"PYTHONHASHSEED": "0", **tracker_variables(self.copy.aside / "new")}
        self._process = Process(own_module(MODULE), variables, self.copy.cwd)
        # Sent with its first turn: until then it only loads torch, and may do that beside others.
        self._task = {
            "name": name,
            "script": str(self.copy.script),
            "arguments": list(self._arguments),
            "equal_steps": equal_steps,
            "nudge": nudge,
            "change": self.copy.change,
            "aside": str(self.copy.aside),
            "copies": dict(self.copy.copies),
        }

    def read_values(self) -> EqualRun:
        """Of the first steps, which it has been told to read."""
        try:
            content = self.ask("")
        except Ended as ending:
            content = ending.values
            if content is None or not content["values"]:
                raise self._failed(
                    "ended without a step: no optimizer step and no call of a model was seen"
                ) from None
        return from_dict(EqualRun, content)

    def run_steps(self, settle: int, steps: int) -> dict[str, Any]:
        window: dict[str, Any] = self.ask("steps", [settle, steps])
        return window

    def restart(self) -> None:
        """After its end: a new process, warmed up."""
        self.start(self.copy.name)
        self.run_steps(0, WARMUP_STEPS)

    def ask(self, kind: str, content: object = None) -> Any:
        """Its answer; it works from now until then, and no longer."""
        if self._ended is not None:
            raise self._ended
        process = self._process
        assert process is not None
        process.go_on()
        try:
            if self._task is not None:
                process.send("run", self._task)
                self._task = None
            if kind:
                process.send(kind, content)
            said, answer = process.hear(self._timeout)
        except Hung:
            raise self._failed(
                f"did not come to the end of its steps within {self._timeout:g} s; if it only "
                "takes that long, allow more with --timeout"
            ) from None
        except Died as death:
            raise self._failed(_explain(str(death))) from None
        process.pause()
        if said == "ended":
            self._ended = Ended(**answer)
            self.length = min(self.length, self._ended.steps)
            raise self._ended
        if said == "failed":
            raise self._failed(_explain(_with_message(answer, process.read_errors())))
        return answer

    def _failed(self, how: str) -> Failed:
        return Failed(f"{self.copy.title} {how}")

    @property
    def is_ended(self) -> bool:
        """By `end`, not by the script itself."""
        return self._process is None

    def end(self) -> None:
        if self._process is not None:
            self._process.end()
            self._process = None


def _with_message(ending: str, errors: str) -> str:
    """The last line of a traceback names the error once more, and says what it was about."""
    lines = errors.strip().splitlines()
    if not lines:
        return ending
    last = one_sentence(lines[-1])
    start, _, error = ending.rpartition(" ")
    return f"{start} {last}" if last.startswith(error) else f"{ending}: {last}"


def _explain(sentence: str) -> str:
    if "EOFError" in sentence:
        return f"{sentence}; it asks for input, and there is nobody to answer"
    if any(each in sentence for each in _OUT_OF_MEMORY):
        return f"{sentence}; both sides must fit into memory at once"
    if is_held_by_another(sentence):
        return f"{sentence}; {ONE_PROCESS}: both sides must be on it at once"
    return sentence
