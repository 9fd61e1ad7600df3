"""How often is the diagnosis of a script right? Judged on scripts whose cause is known."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from diagnose.analyze.units import percent
from diagnose.records.accuracy import AccuracyRecord, CaseResult, Said
from diagnose.records.stats import Interval, hodges_lehmann

HEALTHY = "compute"
NO_ANSWER = "no answer"

# So many lines off is still the same statement or its neighbour, which a reader sees at once.
LINES_OFF = 2
# The goals of the tool, which it publishes whether it meets them or not.
LEAST_CAUSES_RIGHT = 0.95
LEAST_CAUSES_RIGHT_SHORT = 0.85  # where the script ends by itself after some seconds
LEAST_LINES_RIGHT = 0.90
MOST_GAIN_ERROR = 0.15
MOST_FALSE_ALARMS = 0
# A script with no more than this share to gain is called healthy: below it neither the tool nor
# a reader acts.
HEALTHY_SHARE = 0.05


@dataclass(frozen=True)
class Judged:
    """One case, held against its truth."""

    result: CaseResult

    @property
    def is_healthy(self) -> bool:
        return not self.result.culprits

    @property
    def findings(self) -> Sequence[Said]:
        return self.result.answer.findings if self.result.answer else ()

    @property
    def true_cause(self) -> str:
        return HEALTHY if self.is_healthy else self.result.culprits[0].cause

    @property
    def said_cause(self) -> str:
        return self.findings[0].cause if self.findings else NO_ANSWER

    @property
    def cause_right(self) -> bool:
        return self.said_cause == self.true_cause

    @property
    def line_right(self) -> bool | None:
        """With the right cause; None where there is no line to find."""
        if self.is_healthy:
            return None
        culprit = self.result.culprits[0]
        return self.cause_right and any(
            self.findings[0].file == culprit.file and abs(self.findings[0].line - line) <= LINES_OFF
            for line in culprit.lines
        )

    @property
    def false_alarm(self) -> bool:
        return self.is_healthy and any(each.cause != HEALTHY for each in self.findings)

    @property
    def promised(self) -> Sequence[Said]:
        """The findings of the true causes."""
        first = {each.cause: each for each in reversed(self.findings)}
        causes = (culprit.cause for culprit in self.result.culprits)
        return [first[cause] for cause in causes if cause in first]

    @property
    def said_seconds(self) -> float:
        return sum(each.gain_seconds for each in self.promised)

    @property
    def promised_seconds(self) -> float:
        """The promised share of the slow twin's step.

        A shared machine changes its speed from minute to minute, and seconds of different
        minutes cannot be compared.
        """
        twins = self.result.twins
        step = statistics.fmean(twins.slow_seconds) if twins is not None else 0.0
        return step * sum(each.share for each in self.promised)

    @functools.cached_property
    def real(self) -> Interval | None:
        """Seconds per step of the slow script that the repair gives back.

        From pairs of blocks that ran one after the other.
        """
        twins = self.result.twins
        if twins is None:
            return None
        pairs = zip(twins.slow_seconds, twins.fixed_seconds, strict=True)
        return hodges_lehmann([slow - fixed / twins.fixed_work for slow, fixed in pairs])

    @property
    def gain_error(self) -> float | None:
        """Of the promise, as a share of the real gain."""
        if self.is_healthy or self.real is None or self.real.center <= 0:
            return None
        return abs(self.promised_seconds - self.real.center) / self.real.center

    @property
    def not_planted(self) -> str:
        """Why the case proves nothing on this machine, or "".

        A cause that costs nothing here cannot be found here, and must not be. Only where the
        whole interval says so: noise must not take a case out of the count.
        """
        twins = self.result.twins
        if self.real is None or twins is None:
            return ""
        least, most = self.real.ends or (self.real.center, self.real.center)
        enough = HEALTHY_SHARE * statistics.median(twins.slow_seconds)
        if not self.is_healthy and most <= enough:
            return "the repaired twin is hardly faster on this machine"
        if self.is_healthy and least > enough:
            return "the obvious change does help on this machine, so the script is not healthy here"
        return ""


@dataclass(frozen=True)
class Goal:
    """One figure that the tool is measured by; None where no case speaks for it."""

    name: str
    wanted: str
    value: float | None
    right: int | None  # of `count` cases, for shares
    count: int
    met: bool | None


def judge(record: AccuracyRecord) -> list[Judged]:
    return [Judged(each) for each in record.cases]


def goals(cases: Sequence[Judged], *, is_short: bool = False) -> list[Goal]:
    """Cases that prove nothing on this machine are left out; they are listed in the report."""
    counted = [each for each in cases if not each.not_planted]
    planted = [each for each in counted if not each.is_healthy]
    healthy = [each for each in counted if each.is_healthy]
    errors = [each.gain_error for each in planted if each.gain_error is not None]
    error = statistics.median(errors) if errors else None
    least = LEAST_CAUSES_RIGHT_SHORT if is_short else LEAST_CAUSES_RIGHT
    alarms = sum(each.false_alarm for each in healthy)
    return [
        _share_goal("top cause right", least, counted, lambda each: each.cause_right),
        _share_goal(
            f"line right (±{LINES_OFF})",
            LEAST_LINES_RIGHT,
            planted,
            lambda each: bool(each.line_right),
        ),
        Goal(
            "error of the gain, median",
            f"at most {percent(MOST_GAIN_ERROR)}",
            error,
            None,
            len(errors),
            None if error is None else error <= MOST_GAIN_ERROR,
        ),
        Goal(
            "false alarms on healthy scripts",
            "none",
            alarms / len(healthy) if healthy else None,
            alarms,
            len(healthy),
            alarms <= MOST_FALSE_ALARMS if healthy else None,
        ),
    ]


def _share_goal(
    name: str, least: float, cases: Sequence[Judged], is_right: Callable[[Judged], bool]
) -> Goal:
    right = sum(is_right(each) for each in cases)
    share = right / len(cases) if cases else None
    met = None if share is None else share >= least
    return Goal(name, f"at least {percent(least)}", share, right, len(cases), met)


def answer(record: AccuracyRecord) -> str:
    """The four figures in one sentence."""
    cause, line, error, alarms = goals(judge(record), is_short=record.is_short)
    if not record.cases:
        return "No script was diagnosed."
    clauses = [f"the top cause is right in {cause.right} of {cause.count} scripts"]
    if line.count:
        clauses.append(f"the line in {line.right} of {line.count}")
    if error.value is not None:
        clauses.append(f"the promised gain is off by {percent(error.value)} at the median")
    if alarms.count:
        clauses.append(f"{alarms.right} of {alarms.count} healthy scripts raise a false alarm")
    text = "; ".join(clauses)
    ending = "" if record.complete else " The run was not finished."
    return f"{text[0].upper()}{text[1:]}.{ending}"
