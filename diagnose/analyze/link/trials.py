"""What does it mean when the same sweep is faster, slower or hung with one variable changed?"""

from __future__ import annotations

from dataclasses import dataclass, replace

from diagnose.analyze.findings import Finding, Rule
from diagnose.analyze.link.bandwidth import Speed, summarize
from diagnose.analyze.link.surroundings import NO_MEMORY, NO_PEERS, uses_sockets
from diagnose.analyze.units import number
from diagnose.records.ranks import BandwidthRecord, EnvironmentTrial

# Trials run one after the other in processes of their own. The same code, measured so on a
# shared machine, seemed to differ by 0.79 to 1.24.
REAL_DIFFERENCE = 1.25

AS_IT_IS = "as it is"  # the name of the trial that changes nothing


@dataclass(frozen=True)
class TrialResult:
    """One trial beside the first one, which changes nothing."""

    record: BandwidthRecord
    trial: EnvironmentTrial
    baseline: EnvironmentTrial
    baseline_timed: bool
    speed: Speed | None  # of the largest size that the first trial measured too
    ratio: float | None  # bandwidth over that of the first trial

    @property
    def is_faster(self) -> bool:
        return self.ratio is not None and self.ratio >= REAL_DIFFERENCE

    @property
    def without_peers(self) -> bool:
        return self.trial.variables.get(NO_PEERS) == "1"

    @property
    def is_rescued(self) -> bool:
        return _ended_badly(self.baseline) and self.speed is not None

    @property
    def memory_matters(self) -> bool | None:
        """Whether the link is slower without shared memory; None where the trial cannot tell."""
        if self.trial.variables.get(NO_MEMORY) != "1" or self.ratio is None:
            return None
        if uses_sockets(self.record) or self.is_faster:
            return None
        return self.ratio * REAL_DIFFERENCE <= 1

    @property
    def on_gloo(self) -> bool:
        return self.record.backend == "nccl" and "gloo" in self.trial.name

    def __str__(self) -> str:
        if self.speed is None:
            return _say_end(self.trial)
        text = f"{self.trial.name}: {number(self.speed.algorithm_rate / 1e9, 3)} GB/s (algbw)"
        if self.ratio is None:
            return f"{_say_end(self.baseline)}; {text}"
        return f"{text}, {number(self.ratio, 3)}× the baseline"


def compare_trials(record: BandwidthRecord) -> list[TrialResult]:
    """Every trial, the first one included; none where there is nothing to compare with."""
    baseline = next((trial for trial in record.trials if trial.name == AS_IT_IS), None)
    if baseline is None:
        return []
    first = _speeds(record, baseline)
    results = []
    for trial in record.trials:
        speeds = _speeds(record, trial)
        common = max((nbytes for nbytes in speeds if nbytes in first or not first), default=None)
        speed = None if common is None else speeds[common]
        ratio = None
        if speed is not None and first:
            ratio = speed.algorithm_rate / first[speed.nbytes].algorithm_rate
        results.append(TrialResult(record, trial, baseline, bool(first), speed, ratio))
    return results


def judge_trials(record: BandwidthRecord) -> list[Finding]:
    """Of each trial the first rule that fits."""
    found = []
    for result in compare_trials(record):
        if result.trial is not result.baseline:
            name = result.trial.name
            judged = (finding for rule in RULES for finding in rule.judge(result))
            found += [replace(each, sentence=each.sentence.format(name)) for each in judged][:1]
    return found


def _speeds(record: BandwidthRecord, trial: EnvironmentTrial) -> dict[int, Speed]:
    """By size; a trial that did not end well may still have measured some."""
    found = (summarize(size, len(record.ranks)).best for size in trial.sizes)
    return {speed.nbytes: speed for speed in found if speed is not None}


def _ended_badly(trial: EnvironmentTrial) -> bool:
    return trial.status in ("failed", "hung", "invalid")


def _say_end(trial: EnvironmentTrial) -> str:
    return f"{trial.name}: {trial.status} ({trial.reason})"


# The special ones stand before what is true of any variable. {} is the name of the trial.
RULES: tuple[Rule[TrialResult], ...] = (
    Rule(
        "trial_peers_broken",
        "cause",
        "critical",
        "Direct transfers between GPUs are broken: the run only works without them.",
        lambda it: it.without_peers and it.is_rescued and str(it),
        "Look for PCIe access control: sudo lspci -vvv | grep ACSCtl. Switch ACS or the IOMMU off "
        f"in the firmware, or update the driver; until then set {NO_PEERS}=1.",
    ),
    Rule(
        "trial_shared_memory",
        "flag",
        "warning",
        "Without direct transfers NCCL fails: shared memory is probably too small.",
        lambda it: it.without_peers and _ended_badly(it.trial) and it.baseline_timed and str(it),
        "Enlarge /dev/shm (containers: --shm-size=1g or --ipc=host).",
    ),
    Rule(
        "trial_poor_switch",
        "cause",
        "warning",
        "Direct transfers are slower than the way through host memory: the processor makes a "
        "poor PCIe switch.",
        lambda it: it.without_peers and it.is_faster and str(it),
        f"Set {NO_PEERS}=1 for this machine.",
    ),
    Rule(
        "trial_peers_in_use",
        "excluded",
        "info",
        "Shared memory is not the way in use: direct transfers are.",
        lambda it: it.memory_matters is False and str(it),
    ),
    Rule(
        "trial_memory_in_use",
        "flag",
        "info",
        "Shared memory is the way in use, and losing it costs bandwidth.",
        lambda it: it.memory_matters and str(it),
        f"Never set {NO_MEMORY} on this machine.",
    ),
    Rule(
        "trial_gloo_faster",
        "cause",
        "critical",
        "gloo, which copies through the host, is faster than NCCL: NCCL's way is broken.",
        lambda it: it.on_gloo and it.is_faster and str(it),
        "Run with NCCL_DEBUG=INFO and look which transport it names for each channel.",
    ),
    Rule(
        "trial_faster",
        "cause",
        "warning",
        "The link is faster with {}.",
        lambda it: it.is_faster and str(it),
        "Set that for the job and measure the job itself.",
    ),
)
