"""Why does a small model leave the device idle? One rule per suspect, each with its evidence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from diagnose.analyze import derive
from diagnose.analyze.findings import Finding
from diagnose.analyze.optimize.density import flop_rate
from diagnose.analyze.optimize.effects import find
from diagnose.analyze.optimize.experiment import Outcome, changes_model
from diagnose.analyze.optimize.memory_model import advise_on_memory
from diagnose.analyze.units import number, percent, scaled, spread
from diagnose.analyze.verdicts import MATTERS, cannot_tell, excluded
from diagnose.records.experiments import Comparison, OptimizeRecord
from diagnose.records.run import Measurement

WORKLOAD = "timeseries"  # the settings that these rules ask for are its own
EPOCH = "training epoch"
# Below it the published guide calls a GPU starved, and looks for the reasons that follow here.
ENOUGH_UTILIZATION = 0.70
# The job trains for so many epochs; what is done once is spread over them.
EPOCHS = 100
# A larger model must do so much more work per second before the smaller one counts as too small.
DENSER = 1 + MATTERS
COMPILE_KEYS = ("compile_default", "compile_max_autotune")

Rule = Callable[[OptimizeRecord, Sequence[Outcome]], Finding]


@dataclass(frozen=True)
class WorkGain:
    """How many times the work per second the second side does."""

    words: str  # both rates
    least: float
    most: float


def describe(outcome: Outcome) -> str:
    if outcome.timed is None:
        return f"{outcome.name}: {outcome.verdict}"
    scope = outcome.comparison.scope
    return f"{outcome.name}, {scope}: {spread(outcome.timed.speedup)}x, {outcome.verdict}"


def judge_series(record: OptimizeRecord, outcomes: Sequence[Outcome]) -> list[Finding]:
    return [rule(record, outcomes) for rule in RULES]


def low_utilization(record: OptimizeRecord, outcomes: Sequence[Outcome]) -> Finding:
    kind, what = "low_utilization", "Low utilisation"
    base = base_epoch(record, outcomes)
    if base is None:
        return cannot_tell(kind, what, "no epoch was timed")
    seen = derive.utilization(base)
    if seen.value is None:
        return cannot_tell(kind, what, seen.reason)
    evidence = (
        f"{percent(seen.value)} of the time a kernel runs, {percent(ENOUGH_UTILIZATION)} wanted"
    )
    if seen.value >= ENOUGH_UTILIZATION:
        return excluded(kind, what, evidence)
    sentence = f"The device is used for {percent(seen.value)} of an epoch."
    advice = "The findings below say which of the usual reasons it is."
    return Finding(kind, "cause", "warning", sentence, evidence, advice)


def loader_bound(record: OptimizeRecord, outcomes: Sequence[Outcome]) -> Finding:
    """More workers help a loader that is too slow; none help one that only has to start them."""
    kind, what = "loader_bound", "The loader"
    more, fewer = (find(outcomes, key, EPOCH) for key in ("workers_8", "no_workers"))
    tried = [each for each in (more, fewer) if each is not None and each.timed is not None]
    if not tried:
        return cannot_tell(kind, what, _why("workers_8 and no_workers", (more, fewer)))
    evidence = "; ".join(describe(each) for each in tried)
    if fewer is not None and fewer.verdict == "FASTER":
        share = _saved_share(fewer.comparison)
        sentence = f"Loader processes cost {percent(share)} of the epoch."
        advice = "Keep the windows in memory and load with workers=0."
    elif more is not None and more.verdict == "FASTER":
        share = _saved_share(more.comparison)
        sentence = f"The device waits for the loader: 8 workers save {percent(share)} of the epoch."
        advice = "Use more workers and a larger prefetch factor."
    elif all(_gains_nothing(each) for each in tried):
        return excluded(kind, what, evidence)
    else:
        return cannot_tell(kind, what, evidence)
    return Finding(kind, "cause", "warning", sentence, evidence, advice)


def preprocessing_bound(record: OptimizeRecord, outcomes: Sequence[Outcome]) -> Finding:
    kind, what = "preprocessing_bound", "Preprocessing"
    base = base_epoch(record, outcomes)
    seconds = _fact(outcomes, "preprocessing_seconds")
    if base is None or seconds is None:
        return cannot_tell(kind, what, "preprocessing and an epoch were not both timed")
    epoch = derive.step_seconds(base).center
    share = seconds / (seconds + EPOCHS * epoch)
    evidence = (
        f"{number(seconds, 3)} s once, {EPOCHS} epochs of {number(1e3 * epoch)} ms: "
        f"{percent(share)} of the run"
    )
    if share <= MATTERS:
        return excluded(kind, what, evidence)
    sentence = f"Preprocessing takes {percent(share)} of a run of {EPOCHS} epochs."
    advice = "Save the windows once and load them."
    return Finding(kind, "cause", "warning", sentence, evidence, advice)


def batch_too_small(record: OptimizeRecord, outcomes: Sequence[Outcome]) -> Finding:
    kind, what = "batch_too_small", "A batch that is too small"
    timed = [
        each
        for each in outcomes
        if each.comparison.key.startswith("batch_") and each.timed is not None
    ]
    if not timed:
        return cannot_tell(kind, what, "no other batch size was timed")
    evidence = "; ".join(describe(each) for each in timed)
    faster = [each for each in timed if each.verdict == "FASTER" and each.timed is not None]
    if faster:
        best = max(faster, key=lambda each: each.timed.speedup.center if each.timed else 0.0)
        sentence = f"The batch is too small: {best.comparison.after_text} is faster per sample."
        advice = "Take it only if the loss at equal samples is as good; see the curves."
        return Finding(kind, "cause", "warning", sentence, evidence, advice)
    if all(_gains_nothing(each) for each in timed):
        return excluded(kind, what, evidence)
    return cannot_tell(kind, what, evidence)


def model_too_small(record: OptimizeRecord, outcomes: Sequence[Outcome]) -> Finding:
    """Held by work per second: a model that fills the device cannot do more of it."""
    kind, what = "model_too_small", "A model that is too small"
    told, lows, highs = [], [], []
    for each in outcomes:
        gain = work_gain(each.comparison) if changes_model(each.comparison) else None
        if gain is None:
            continue
        told.append(f"{each.comparison.after_text}: {gain.words}")
        lows.append(gain.least)
        highs.append(gain.most)
    if not told:
        return cannot_tell(kind, what, "the work of no larger model was measured")
    evidence = "; ".join(told)
    if max(lows) > DENSER:
        sentence = (
            f"The model is too small for the device: a larger one does at least "
            f"{number(max(lows), 3)} times the work per second."
        )
        advice = "Give the device more per launch: a larger batch, or several models side by side."
        return Finding(kind, "cause", "warning", sentence, evidence, advice)
    if max(highs) <= DENSER:
        return excluded(kind, what, evidence)
    return cannot_tell(kind, what, evidence)


def work_gain(comparison: Comparison) -> WorkGain | None:
    """None where the work of a side was not measured, or no interval of it exists."""
    if comparison.before is None or comparison.after is None:
        return None
    first = flop_rate(comparison, "before", comparison.before)
    second = flop_rate(comparison, "after", comparison.after)
    if first is None or second is None or not first.low or not first.high:
        return None
    if second.low is None or second.high is None:
        return None
    words = f"{scaled(first.center, 'FLOP/s')} → {scaled(second.center, 'FLOP/s')}"
    return WorkGain(words, second.low / first.high, second.high / first.low)


def compile_without_effect(record: OptimizeRecord, outcomes: Sequence[Outcome]) -> Finding:
    kind, what = "compile_without_effect", "torch.compile without effect"
    tried = [each for key in COMPILE_KEYS if (each := find(outcomes, key, EPOCH)) is not None]
    timed = [each for each in tried if each.timed is not None]
    if not timed:
        return cannot_tell(kind, what, _why("torch.compile", tried))
    evidence = "; ".join(f"{describe(each)}{compile_facts(each.comparison)}" for each in timed)
    if any(each.comparison.facts.get("took_effect") is False for each in timed):
        sentence = "torch.compile changed nothing: no graph of the model was compiled."
        advice = "Read TORCH_LOGS=graph_breaks, or leave it out."
        return Finding(kind, "cause", "warning", sentence, evidence, advice)
    if any(each.verdict == "FASTER" for each in timed):
        return excluded(kind, what, evidence)
    if all(_gains_nothing(each) for each in timed):
        sentence = "torch.compile compiles the model, but no epoch is faster for it."
        advice = "Leave it out: its compile time is never earned back."
        return Finding(kind, "cause", "info", sentence, evidence, advice)
    return cannot_tell(kind, what, evidence)


def compile_facts(comparison: Comparison) -> str:
    """Graph breaks, recompiles, and after how many epochs the compile time is earned back."""
    facts = comparison.facts
    words = [
        f"{facts[name]} {name.replace('_', ' ')}"
        for name in ("graph_breaks", "recompiles")
        if facts.get(name) is not None
    ]
    epochs = break_even_epochs(comparison)
    seconds = facts.get("compile_seconds")
    if isinstance(seconds, int | float):
        words.append(f"{number(float(seconds), 3)} s to compile")
        words.append(
            "never earned back" if epochs is None else f"earned back after {epochs} epochs"
        )
    return f" ({', '.join(words)})" if words else ""


def break_even_epochs(comparison: Comparison) -> int | None:
    """None where the epoch is not certainly shorter, so that nothing is earned."""
    seconds = comparison.facts.get("compile_seconds")
    if comparison.before is None or comparison.after is None:
        return None
    if not isinstance(seconds, int | float) or isinstance(seconds, bool):
        return None
    saved = derive.difference(comparison.before, comparison.after).seconds
    if saved.low is None or saved.low <= 0:
        return None
    return int(seconds / saved.center) + 1


def base_epoch(record: OptimizeRecord, outcomes: Sequence[Outcome]) -> Measurement | None:
    """An epoch of the job as it was."""
    for each in record.rungs:
        if each.before is not None:
            return each.before
    single = ("set_to_none", "no_workers", "workers_8", "batch_256")
    found = (find(outcomes, key, EPOCH) for key in single)
    return next((each.comparison.before for each in found if each and each.timed), None)


def _gains_nothing(outcome: Outcome) -> bool:
    """On a noisy machine SAME may hide a large gain, so the interval itself is asked."""
    high = None if outcome.timed is None else outcome.timed.speedup.high
    return outcome.verdict in ("SAME", "SLOWER") and high is not None and high <= 1 + MATTERS


def _saved_share(comparison: Comparison) -> float:
    assert comparison.before is not None  # it has a verdict
    assert comparison.after is not None
    return derive.difference(comparison.before, comparison.after).share.center


def _fact(outcomes: Sequence[Outcome], name: str) -> float | None:
    for each in outcomes:
        value = each.comparison.facts.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
    return None


def _why(what: str, tried: Sequence[Outcome | None]) -> str:
    reasons = dict.fromkeys(each.reason for each in tried if each is not None and each.reason)
    return "; ".join(reasons) or f"{what}: not timed"


# In the order of the published guide: first whether there is a problem at all, then the reasons
# that cost nothing to mend, then those that change the training.
RULES: tuple[Rule, ...] = (
    low_utilization,
    loader_bound,
    preprocessing_bound,
    batch_too_small,
    model_too_small,
    compile_without_effect,
    advise_on_memory,
)
