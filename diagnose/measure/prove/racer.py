"""Who holds a side? Starts its process, lets it go on only for its turn, starts it again."""

from __future__ import annotations

import signal
from types import TracebackType
from typing import Any

from diagnose.measure.process import Died, Hung, Process, own_module
from diagnose.measure.prove.sides import Copy
from diagnose.measure.script.trackers import tracker_variables
from diagnose.measure.words import one_sentence
from diagnose.records.codec import from_dict
from diagnose.records.prove import EqualRun

MODULE = "diagnose.measure.prove.side"
# Steps that a side which was started again takes before it is timed.
WARMUP_STEPS = 5


class Ended(Exception):
    """The script of a side came to its end, as it may."""

    def __init__(self, values: Any, steps: int) -> None:
        super().__init__(values, steps)
        self.values, self.steps = values, steps


class Failed(Exception):
    """A side cannot go on; the message goes on from the name of the side."""


class Racer:
    """One side, in one process after the other; outside its turns it is stopped."""

    def __init__(self, copy: Copy, arguments: tuple[str, ...], timeout: float) -> None:
        self.copy = copy
        self.name = copy.name  # of the run
        self._arguments, self._timeout = arguments, timeout
        self._process: Process | None = None
        self._ended: Ended | None = None  # until it is started again

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
        process = Process(own_module(MODULE), variables, self.copy.cwd)
        self._process = process
        task = {
            "name": name,
            "script": str(self.copy.script),
            "arguments": list(self._arguments),
            "equal_steps": equal_steps,
            "nudge": nudge,
            "change": self.copy.change,
            "aside": str(self.copy.aside),
            "copies": dict(self.copy.copies),
        }
        process.send("run", task)

    def read_values(self) -> EqualRun:
        """Of the first steps, which it has been told to read."""
        try:
            content = self.ask("")
        except Ended as ending:
            content = ending.values
            if content is None or not content["values"]:
                raise Failed("ended before its first step") from None
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
            if kind:
                process.send(kind, content)
            said, answer = process.hear(self._timeout)
        except Hung:
            raise Failed(
                f"did not come to the end of its steps within {self._timeout:g} s"
            ) from None
        except Died as death:
            raise Failed(_explain(str(death))) from None
        process.pause()
        if said == "ended":
            self._ended = Ended(**answer)
            raise self._ended
        if said == "failed":
            last = process.read_errors().strip().splitlines()
            raise Failed(_explain(f"{answer}: {one_sentence(last[-1])}" if last else answer))
        return answer

    def end(self) -> None:
        if self._process is not None:
            self._process.end()
            self._process = None


def _explain(sentence: str) -> str:
    if "EOFError" in sentence:
        return f"{sentence}; it asks for input, and there is nobody to answer"
    if "OutOfMemory" in sentence or signal.SIGKILL.name in sentence:
        return f"{sentence}; both sides must fit into memory at once"
    return sentence
