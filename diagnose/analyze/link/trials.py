"""What does it mean when the same sweep is faster, slower or hung with one variable changed?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from diagnose.analyze.findings import Finding
from diagnose.analyze.link.bandwidth import Speed, summarise
from diagnose.analyze.link.surroundings import uses_sockets
from diagnose.analyze.units import number
from diagnose.records.ranks import BandwidthRecord, EnvironmentTrial

# Trials run one after the other in processes of their own. The same code, measured so on a
# shared machine, seemed to differ by 0.79 to 1.24.
REAL_DIFFERENCE = 1.25

AS_IT_IS = "as it is"  # the name of the trial that changes nothing

_ENDED_BADLY = ("failed", "hung", "invalid")


@dataclass(frozen=True)
class Outcome:
    """One trial beside the first one, which changes nothing."""

    trial: EnvironmentTrial
    speed: Speed | None  # of the largest size that the first trial measured too
    ratio: float | None  # bandwidth over that of the first trial
    is_baseline: bool

    @property
    def ended_badly(self) -> bool:
        return self.trial.status in _ENDED_BADLY

    def sets(self, name: str, value: str) -> bool:
        return self.trial.variables.get(name) == value


def compare_trials(record: BandwidthRecord) -> list[Outcome]:
    baseline = next((trial for trial in record.trials if trial.name == AS_IT_IS), None)
    if baseline is None:
        return []
    first, count = _speeds(baseline, len(record.ranks)), len(record.ranks)
    outcomes = []
    for trial in record.trials:
        speeds = _speeds(trial, count)
        common = max((nbytes for nbytes in speeds if nbytes in first or not first), default=None)
        speed = None if common is None else speeds[common]
        ratio = None
        if speed is not None and first:
            ratio = speed.algorithm_rate / first[speed.nbytes].algorithm_rate
        outcomes.append(Outcome(trial, speed, ratio, trial is baseline))
    return outcomes


def judge_trials(record: BandwidthRecord) -> list[Finding]:
    outcomes = compare_trials(record)
    if not outcomes:
        return []
    baseline = next(each for each in outcomes if each.is_baseline)
    found = []
    for outcome in outcomes:
        if not outcome.is_baseline:
            found += _interpret(record, baseline, outcome)
    return found


def _interpret(record: BandwidthRecord, baseline: Outcome, outcome: Outcome) -> list[Finding]:
    """The first reading that fits: the special ones stand before what is true of any variable."""
    for read in _READINGS:
        finding = read(record, baseline, outcome)
        if finding is not None:
            return [finding]
    return []


def _peers_broken(record: BandwidthRecord, baseline: Outcome, outcome: Outcome) -> Finding | None:
    if not (outcome.sets("NCCL_P2P_DISABLE", "1") and baseline.ended_badly and outcome.speed):
        return None
    return Finding(
        "trial_peers_broken",
        "cause",
        "critical",
        "Direct transfers between GPUs are broken: the run only works without them.",
        f"as it is: {baseline.trial.status} ({baseline.trial.reason}); {_say(outcome)}",
        "Look for PCIe access control: sudo lspci -vvv | grep ACSCtl. Switch ACS or the IOMMU off "
        "in the firmware, or update the driver; until then set NCCL_P2P_DISABLE=1.",
    )


def _shared_memory_broken(
    record: BandwidthRecord, baseline: Outcome, outcome: Outcome
) -> Finding | None:
    if not (outcome.sets("NCCL_P2P_DISABLE", "1") and outcome.ended_badly and baseline.speed):
        return None
    return Finding(
        "trial_shared_memory",
        "flag",
        "warning",
        "Without direct transfers NCCL fails: shared memory is probably too small.",
        f"{outcome.trial.name}: {outcome.trial.status} ({outcome.trial.reason})",
        "Enlarge /dev/shm (containers: --shm-size=1g or --ipc=host).",
    )


def _poor_switch(record: BandwidthRecord, baseline: Outcome, outcome: Outcome) -> Finding | None:
    if not (outcome.sets("NCCL_P2P_DISABLE", "1") and _is_faster(outcome)):
        return None
    return Finding(
        "trial_poor_switch",
        "cause",
        "warning",
        "Direct transfers are slower than the way through host memory: the processor makes a "
        "poor PCIe switch.",
        _say(outcome),
        "Set NCCL_P2P_DISABLE=1 for this machine.",
    )


def _peers_in_use(record: BandwidthRecord, baseline: Outcome, outcome: Outcome) -> Finding | None:
    if not outcome.sets("NCCL_SHM_DISABLE", "1") or outcome.ratio is None:
        return None
    if uses_sockets(record) or _is_faster(outcome):
        return None
    if outcome.ratio * REAL_DIFFERENCE > 1:
        sentence = "Shared memory is not the way in use: direct transfers are."
        return Finding("trial_peers_in_use", "excluded", "info", sentence, _say(outcome))
    sentence = "Shared memory is the way in use, and losing it costs bandwidth."
    advice = "Never set NCCL_SHM_DISABLE on this machine."
    return Finding("trial_memory_in_use", "flag", "info", sentence, _say(outcome), advice)


def _gloo_faster(record: BandwidthRecord, baseline: Outcome, outcome: Outcome) -> Finding | None:
    if "gloo" not in outcome.trial.name or record.backend != "nccl" or not _is_faster(outcome):
        return None
    return Finding(
        "trial_gloo_faster",
        "cause",
        "critical",
        "gloo, which copies through the host, is faster than NCCL: NCCL's way is broken.",
        _say(outcome),
        "Run with NCCL_DEBUG=INFO and look which transport it names for each channel.",
    )


def _any_faster(record: BandwidthRecord, baseline: Outcome, outcome: Outcome) -> Finding | None:
    if not _is_faster(outcome):
        return None
    return Finding(
        "trial_faster",
        "cause",
        "warning",
        f"The link is faster with {outcome.trial.name}.",
        _say(outcome),
        f"Set {_assignments(outcome.trial)} for the job and measure the job itself.",
    )


_READINGS: tuple[Callable[[BandwidthRecord, Outcome, Outcome], Finding | None], ...] = (
    _peers_broken,
    _shared_memory_broken,
    _poor_switch,
    _peers_in_use,
    _gloo_faster,
    _any_faster,
)


def _speeds(trial: EnvironmentTrial, world_size: int) -> dict[int, Speed]:
    """By size; a trial that did not end well may still have measured some."""
    found = (summarise(size, world_size).best for size in trial.sizes)
    return {speed.nbytes: speed for speed in found if speed is not None}


def _is_faster(outcome: Outcome) -> bool:
    return outcome.ratio is not None and outcome.ratio >= REAL_DIFFERENCE


def _say(outcome: Outcome) -> str:
    if outcome.speed is None:
        return f"{outcome.trial.name}: {outcome.trial.status}"
    text = f"{outcome.trial.name}: {number(outcome.speed.algorithm_rate / 1e9, 3)} GB/s (algbw)"
    if outcome.ratio is not None:
        text += f", {number(outcome.ratio, 3)} times as it is"
    return text


def _assignments(trial: EnvironmentTrial) -> str:
    return " ".join(f"{name}={value}" for name, value in trial.variables.items())
