"""Who keeps the measuring process working? Asks it, replaces it, and never waits for ever.

This side loads no torch. A request ends as an answer, or as a status with one sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from diagnose.measure.child import Child, ChildDied, ChildHung

OPEN_SECONDS = 600  # a cold disk, a first preprocessing of the data


@dataclass(frozen=True)
class Job:
    """What is to be measured. None leaves the choice to the device that is found."""

    workload: str = "bert"
    size: str | None = None
    device: str | None = None
    data: str | None = None
    model: str | None = None  # a directory with the model to take instead of random weights
    torch_dtype: str | None = None  # of the weights of a model that writes answers
    max_new_tokens: int | None = None  # of its answers
    effort: str | None = None
    seed: int = 0


@dataclass(frozen=True)
class Broken:
    """A request without an answer."""

    status: Literal["failed", "hung"]
    reason: str


class Refused(Exception):
    """The request makes no sense here; the message says why and what to do."""


class CouldNotOpen(Exception):
    """The child ended before anything could be measured."""


class Supervisor:
    """One measuring process at a time; a fresh one after every failure."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._child: Child | None = None

    def open(self) -> dict[str, Any]:
        """Start the child; returns its description of device, machine and workload."""
        self._child = Child()
        request = {"open": {**vars(self._job), "effort": self._job.effort or ""}}
        try:
            kind, content = self._child.ask(request, OPEN_SECONDS, lambda seen: None)
        except ChildDied as error:
            self.end()
            raise CouldNotOpen(str(error)) from None
        except ChildHung:
            self.end()
            raise CouldNotOpen(f"not ready after {OPEN_SECONDS} s") from None
        if kind != "ready":
            self.end()
            raise Refused(content) if kind == "refused" else CouldNotOpen(content)
        ready: dict[str, Any] = content
        return ready

    def ask(
        self,
        request: Mapping[str, object],
        seconds: float,
        on_progress: Callable[[list[Any]], None],
    ) -> dict[str, Any] | Broken:
        """The child's result. Whatever state a failure leaves it in, it is then replaced."""
        try:
            if self._child is None:
                self.open()
            assert self._child is not None
            kind, content = self._child.ask(request, seconds, on_progress)
        except ChildHung:
            self.end()
            reason = f"no result after {seconds:g} s; the measuring process was killed"
            return Broken("hung", reason)
        except ChildDied as error:
            self.end()
            return Broken("failed", str(error))
        except (Refused, CouldNotOpen) as error:
            return Broken("failed", f"the measuring process could not be replaced: {error}")
        if kind == "failed":
            self.end()
            return Broken("failed", content)
        result: dict[str, Any] = content
        return result

    def end(self) -> None:
        if self._child is not None:
            self._child.end()
            self._child = None
