"""How do ranks measure as one? They meet, agree, and fail together; one rank alone does so too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

Failure = tuple[str, str]  # kind of end, and what goes on from "rank 1 ..."; ("", "") for none
NO_FAILURE: Failure = ("", "")
Describe = Callable[[Exception], Failure]


class StepFailed(Exception):
    """A step failed on some rank; raised on all of them, so that they can go on together."""


class Peers(Protocol):
    """What timing needs of the ranks; a Member is one."""

    rank: int

    def at(self, text: str) -> None:
        """Say where this rank is."""

    def gather_objects(self, value: Any) -> list[Any]:
        """One value of every rank, on every rank."""

    def broadcast(self, value: Any) -> Any:
        """The value of rank 0, on every rank."""

    def barrier(self) -> None:
        """Wait until every rank is here."""


class Alone:
    """A rank without others: it meets only itself."""

    rank = 0

    def at(self, text: str) -> None:
        pass

    def gather_objects(self, value: Any) -> list[Any]:
        return [value]

    def broadcast(self, value: Any) -> Any:
        return value

    def barrier(self) -> None:
        pass


ALONE = Alone()


def attempt(work: Callable[[], object], describe: Describe | None) -> Failure:
    """Do the work; how it failed is an answer, if there is somebody to describe it."""
    try:
        work()
    # An option may fail in any way that its library knows; that is a row of the table.
    except Exception as error:
        if describe is None:
            raise
        return describe(error)
    return NO_FAILURE


def raise_shared(failures: Sequence[Sequence[str]]) -> None:
    """StepFailed if any rank failed, with the sentence of the one that is to blame."""
    failed = [(rank, kind, text) for rank, (kind, text) in enumerate(failures) if kind]
    if not failed:
        return
    # A rank whose peers went away has nothing to say about the cause.
    causes = [each for each in failed if each[1] != "lost peers"] or failed
    rank, _, text = causes[0]
    alike = len(failures) > 1 and [each[2] for each in causes] == [text] * len(failures)
    raise StepFailed(f"every rank {text}" if alike else f"rank {rank} {text}")
