"""How often is the diagnosis of a script right? Judged on scripts whose cause is known."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from diagnose.analyze.units import percent
from diagnose.records.accuracy import AccuracyRecord, CaseResult, PlantedCulprit, Said, Twins
from diagnose.records.stats import Interval, hodges_lehmann

HEALTHY = "compute"
NO_ANSWER = "no answer"

# So many lines off is still the same statement or its neighbour, which a reader sees at once.
LINES_OFF = 2
# The goals of the tool, which it publishes whether it meets them or not.
LEAST_CAUSES_RIGHT = 0.95
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
    not_planted: str  # why the case proves nothing on this machine, or ""
    said_cause: str
    cause_right: bool
    line_right: bool | None  # with the right cause; None where there is no line to find
    found: int  # how many of its culprits are among the findings
    real: Interval | None  # seconds per step that the repair gives back
    said_seconds: float  # that the findings of the true causes promise
    # The same share of the slow twin's step: a shared machine changes its speed from minute to
    # minute, and seconds of different minutes cannot be compared.
    promised_seconds: float
    gain_error: float | None  # of that promise, as a share of the real gain
    false_alarm: bool

    @property
    def is_healthy(self) -> bool:
        return not self.result.culprits

    @property
    def true_cause(self) -> str:
        return self.result.culprits[0].cause if self.result.culprits else HEALTHY


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
    return [judge_case(each) for each in record.cases]


def judge_case(result: CaseResult) -> Judged:
    findings = result.answer.findings if result.answer else ()
    real = _real_gain(result.twins)
    said_cause = findings[0].cause if findings else NO_ANSWER
    true_causes = [each.cause for each in result.culprits]
    promised = [_find(findings, cause) for cause in true_causes]
    said_seconds = sum(each.gain_seconds for each in promised if each is not None)
    share = sum(each.share for each in promised if each is not None)
    on_twin = share * _mean_step(result.twins)
    cause_right = said_cause == (true_causes[0] if true_causes else HEALTHY)
    line_right = (
        cause_right and _names_line(findings[:1], result.culprits[0]) if true_causes else None
    )
    return Judged(
        result=result,
        not_planted=_why_not_planted(result, real),
        said_cause=said_cause,
        cause_right=cause_right,
        line_right=line_right,
        found=sum(each is not None for each in promised),
        real=real,
        said_seconds=said_seconds,
        promised_seconds=on_twin,
        gain_error=_error(on_twin, real) if true_causes else None,
        false_alarm=not true_causes and any(each.cause != HEALTHY for each in findings),
    )


def _real_gain(twins: Twins | None) -> Interval | None:
    """Per step of the slow script, from pairs of blocks that ran one after the other."""
    if twins is None:
        return None
    pairs = zip(twins.slow_seconds, twins.fixed_seconds, strict=True)
    return hodges_lehmann([slow - fixed / twins.fixed_work for slow, fixed in pairs])


def _mean_step(twins: Twins | None) -> float:
    return statistics.fmean(twins.slow_seconds) if twins is not None else 0.0


def _why_not_planted(result: CaseResult, real: Interval | None) -> str:
    """A cause that costs nothing on this machine cannot be found on it, and must not be.

    Only where the whole interval says so: noise must not take a case out of the count.
    """
    if real is None or result.twins is None:
        return ""
    least = real.center if real.low is None else real.low
    most = real.center if real.high is None else real.high
    enough = HEALTHY_SHARE * statistics.median(result.twins.slow_seconds)
    if result.culprits and most <= enough:
        return "the repaired twin is hardly faster on this machine"
    if not result.culprits and least > enough:
        return "the obvious change does help on this machine, so the script is not healthy here"
    return ""


def _find(findings: Sequence[Said], cause: str) -> Said | None:
    return next((each for each in findings if each.cause == cause), None)


def _names_line(findings: Sequence[Said], culprit: PlantedCulprit) -> bool:
    return any(
        each.file == culprit.file and abs(each.line - line) <= LINES_OFF
        for each in findings
        for line in culprit.lines
    )


def _error(said_seconds: float, real: Interval | None) -> float | None:
    if real is None or real.center <= 0:
        return None
    return abs(said_seconds - real.center) / real.center


def goals(cases: Sequence[Judged]) -> list[Goal]:
    """Cases that prove nothing on this machine are left out; they are listed in the report."""
    counted = [each for each in cases if not each.not_planted]
    planted = [each for each in counted if not each.is_healthy]
    healthy = [each for each in counted if each.is_healthy]
    errors = [each.gain_error for each in planted if each.gain_error is not None]
    error = statistics.median(errors) if errors else None
    alarms = sum(each.false_alarm for each in healthy)
    return [
        _share_goal("top cause right", LEAST_CAUSES_RIGHT, counted, lambda each: each.cause_right),
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
    cause, line, error, alarms = goals(judge(record))
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
