"""Who ended the job? How every rank ended, and which of these ends explains the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from diagnose.records.exit_codes import COULD_NOT_MEASURE, FINE, INTERRUPTED, USAGE
from diagnose.records.ranks import Culprit

Kind = Literal[
    "done",
    "failed",  # by itself: killed, raised, out of memory
    "refused",  # what was asked for is not there: a backend, a device
    "no rendezvous",
    "stopped",  # SIGSTOP, a debugger
    "silent",  # no word from its supervisor: host, link or supervisor is gone
    "hung",
    "interrupted",
    "lost peers",
]

# The first that occurs explains the rest. A rank that fails by itself makes the others lose it;
# one that hears nothing any more is only blamed where nobody has a reason of their own. Silence
# comes before an interruption because torchrun interrupts the others when a supervisor dies.
_CAUSES: tuple[Kind, ...] = (
    "failed",
    "refused",
    "no rendezvous",
    "stopped",
    "silent",
    "hung",
    "interrupted",
    "lost peers",
)


@dataclass(frozen=True)
class End:
    """How one rank ended. The texts go on from "rank 1 ..." and "... during the ..."."""

    rank: int
    kind: Kind
    reason: str = ""
    where: str = ""


@dataclass(frozen=True)
class Outcome:
    """How the whole job ended; the same on every rank that still has a supervisor."""

    ends: tuple[End, ...]

    @property
    def cause(self) -> End | None:
        """The end that explains the others; None if all is done."""
        for kind in _CAUSES:
            for end in self.ends:
                if end.kind == kind:
                    return end
        return None

    @property
    def culprit(self) -> Culprit | None:
        """The cause, if it is a rank's and not the user's or the set-up's."""
        end = self.cause
        if end is None or end.kind in ("refused", "no rendezvous", "interrupted"):
            return None
        return Culprit(end.rank, end.reason, end.where or self._common_where())

    def _common_where(self) -> str:
        """Ranks work in lockstep, so where the others were is where a silent one was."""
        return next((end.where for end in self.ends if end.where), "start")

    @property
    def code(self) -> int:
        end = self.cause
        if end is None:
            return FINE
        return {"refused": USAGE, "interrupted": INTERRUPTED}.get(end.kind, COULD_NOT_MEASURE)

    @property
    def sentence(self) -> str:
        """What happened, without a full stop; empty if all is done."""
        end, culprit = self.cause, self.culprit
        if end is None:
            return ""
        if culprit is not None:
            return f"rank {culprit.rank} {culprit.reason} during the {culprit.where}"
        return "interrupted" if end.kind == "interrupted" else end.reason

    @property
    def teller(self) -> int:
        """The rank that speaks for all: rank 0, or the first that is left."""
        return min((end.rank for end in self.ends if end.kind != "silent"), default=0)


def complete(ends: Sequence[End], world_size: int) -> Outcome:
    """The outcome, with a word about every rank that sent none."""
    heard = {end.rank: end for end in ends}
    silent = "cannot be reached any more (its host, its link or its supervising process is gone)"
    return Outcome(
        tuple(heard.get(rank, End(rank, "silent", silent)) for rank in range(world_size))
    )
