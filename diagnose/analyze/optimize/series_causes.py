"""Why does a small model leave the device idle? One rule per suspect, each with its evidence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from diagnose.analyze import derive
from diagnose.analyze.findings import Finding
from diagnose.analyze.optimize.effects import (
    EPOCH,
    break_even_steps,
    describe,
    either,
    fact_of,
    find,
    leaders,
)
from diagnose.analyze.optimize.experiment import Outcome, changes_model
from diagnose.analyze.optimize.work import work_gain
from diagnose.analyze.units import number, percent
from diagnose.analyze.verdicts import MATTERS, cannot_tell, excluded
from diagnose.records.experiments import Comparison, OptimizeRecord
from diagnose.records.run import Measurement

WORKLOAD = "timeseries"  # the settings that these rules ask for are its own
# Below it the published guide calls a GPU starved, and looks for the reasons that follow here.
ENOUGH_UTILIZATION = 0.70
# The job trains for so many epochs; what is done once is spread over them.
EPOCHS = 100
# A larger model must do so much more work per second before the smaller one counts as too small.
DENSER = 1 + MATTERS
COMPILE_KEYS = ("compile_default", "compile_max_autotune")


@dataclass(frozen=True)
class Suspicion:
    """What a rule found: a cause where it has a sentence, else innocence or no decision."""

    evidence: str
    sentence: str = ""
    is_excluded: bool = False


Examine = Callable[[OptimizeRecord, Sequence[Outcome]], Suspicion]


@dataclass(frozen=True)
class Rule:
    """One suspect, how a record accuses or clears it, and what then to do."""

    kind: str
    what: str
    examine: Examine
    advice: str

    def judge(self, record: OptimizeRecord, outcomes: Sequence[Outcome]) -> Finding:
        found = self.examine(record, outcomes)
        if found.sentence:
            text = found.sentence, found.evidence, self.advice
            return Finding(self.kind, "cause", "warning", *text)
        decide = excluded if found.is_excluded else cannot_tell
        return decide(self.kind, self.what, found.evidence)


def judge_series(record: OptimizeRecord, outcomes: Sequence[Outcome]) -> list[Finding]:
    return [rule.judge(record, outcomes) for rule in RULES]


def low_utilization(record: OptimizeRecord, outcomes: Sequence[Outcome]) -> Suspicion:
    base = base_epoch(record, outcomes)
    if base is None:
        return Suspicion("no epoch was timed")
    seen = derive.utilization(base)
    if seen.value is None:
        return Suspicion(seen.reason)
    evidence = (
        f"a kernel runs {percent(seen.value)} of the time, {percent(ENOUGH_UTILIZATION)} is enough"
    )
    if seen.value >= ENOUGH_UTILIZATION:
        return Suspicion(evidence, is_excluded=True)
    return Suspicion(evidence, f"The device is used for {percent(seen.value)} of an epoch.")


def gain_of(key: str, sentence: str) -> Examine:
    """A suspect that a faster epoch convicts, by {share} of it, with {change}.

    A key that ends in an underscore stands for all that begin with it.
    """

    def examine(record: OptimizeRecord, outcomes: Sequence[Outcome]) -> Suspicion:
        tried = [each for each in outcomes if _is_epoch(each, key)]
        timed = [each for each in tried if each.timed is not None]
        if not timed:
            return Suspicion(_why(key, tried))
        evidence = "; ".join(describe(each) for each in timed)
        faster = [each for each in timed if each.verdict == "FASTER"]
        if not faster:
            return Suspicion(evidence, is_excluded=all(_gains_nothing(each) for each in timed))
        best = [each.comparison for each in leaders(faster)]
        share = percent(_saved_share(best[0]))
        change = either([each.after_text for each in best])
        return Suspicion(evidence, sentence.format(share=share, change=change))

    return examine


def preprocessing_bound(record: OptimizeRecord, outcomes: Sequence[Outcome]) -> Suspicion:
    base = base_epoch(record, outcomes)
    known = (fact_of(each.comparison, "preprocessing_seconds") for each in outcomes)
    seconds = next((each for each in known if each is not None), None)
    if base is None or seconds is None:
        return Suspicion("preprocessing and an epoch were not both timed")
    epoch = derive.step_seconds(base).center
    share = seconds / (seconds + EPOCHS * epoch)
    evidence = (
        f"{number(seconds, 3)} s once, {EPOCHS} epochs of {number(1e3 * epoch)} ms: "
        f"{percent(share)} of the run"
    )
    if share <= MATTERS:
        return Suspicion(evidence, is_excluded=True)
    return Suspicion(evidence, f"Preprocessing takes {percent(share)} of a run of {EPOCHS} epochs.")


def model_too_small(record: OptimizeRecord, outcomes: Sequence[Outcome]) -> Suspicion:
    """By work per second: a model that fills the device cannot do more of it."""
    gains = [
        (each.comparison.after_text, gain)
        for each in outcomes
        if changes_model(each.comparison) and (gain := work_gain(each.comparison)) is not None
    ]
    if not gains:
        return Suspicion("the work of no larger model was measured")
    evidence = "; ".join(f"{model}: {gain.words}" for model, gain in gains)
    least = max(gain.least for _, gain in gains)
    if least > DENSER:
        return Suspicion(
            evidence,
            "The model is too small for the device: a larger one does at least "
            f"{number(least, 3)} times the work per second.",
        )
    return Suspicion(evidence, is_excluded=max(gain.most for _, gain in gains) <= DENSER)


def compile_without_effect(record: OptimizeRecord, outcomes: Sequence[Outcome]) -> Suspicion:
    tried = [each for key in COMPILE_KEYS if (each := find(outcomes, key, EPOCH)) is not None]
    timed = [each for each in tried if each.timed is not None]
    if not timed:
        return Suspicion(_why("torch.compile", tried))
    evidence = "; ".join(f"{describe(each)}{compile_facts(each.comparison)}" for each in timed)
    if any(each.comparison.facts.get("took_effect") is False for each in timed):
        return Suspicion(
            evidence, "torch.compile changed nothing: no graph of the model was compiled."
        )
    if any(each.verdict == "FASTER" for each in timed):
        return Suspicion(evidence, is_excluded=True)
    if all(_gains_nothing(each) for each in timed):
        return Suspicion(
            evidence, "torch.compile compiles the model, but no epoch is faster for it."
        )
    return Suspicion(evidence)


def out_of_memory(record: OptimizeRecord, outcomes: Sequence[Outcome]) -> Suspicion:
    failed = [
        each
        for each in outcomes
        if each.verdict == "FAILED" and each.reason.startswith("out of memory")
    ]
    if not failed:
        return Suspicion("nothing that was tried ran out of memory", is_excluded=True)
    return Suspicion(
        "; ".join(f"{each.name}: {each.reason}" for each in failed),
        f"Out of memory: {', '.join(dict.fromkeys(each.name for each in failed))}.",
    )


def compile_facts(comparison: Comparison) -> str:
    """Graph breaks, recompiles, and after how many epochs the compile time is earned back."""
    facts = comparison.facts
    words = [
        f"{facts[name]} {name.replace('_', ' ')}"
        for name in ("graph_breaks", "recompiles")
        if facts.get(name) is not None
    ]
    epochs, seconds = break_even_steps(comparison), fact_of(comparison, "compile_seconds")
    if seconds is not None:
        words.append(f"{number(seconds, 3)} s to compile")
        words.append(
            "never earned back" if epochs is None else f"earned back after {epochs} epochs"
        )
    return f" ({', '.join(words)})" if words else ""


def base_epoch(record: OptimizeRecord, outcomes: Sequence[Outcome]) -> Measurement | None:
    """An epoch of the job as it was."""
    for each in record.rungs:
        if each.before is not None:
            return each.before
    single = ("set_to_none", "no_workers", "workers_8", "batch_256")
    found = (find(outcomes, key, EPOCH) for key in single)
    return next((each.comparison.before for each in found if each and each.timed), None)


def _is_epoch(outcome: Outcome, key: str) -> bool:
    comparison = outcome.comparison
    fits = comparison.key == key or (key.endswith("_") and comparison.key.startswith(key))
    return fits and comparison.form == "after" and EPOCH in comparison.scope.split(" / ")


def _gains_nothing(outcome: Outcome) -> bool:
    """On a noisy machine SAME may hide a large gain, so the interval itself is asked."""
    high = None if outcome.timed is None else outcome.timed.speedup.high
    return outcome.verdict in ("SAME", "SLOWER") and high is not None and high <= 1 + MATTERS


def _saved_share(comparison: Comparison) -> float:
    assert comparison.before is not None  # it has a verdict
    assert comparison.after is not None
    return derive.difference(comparison.before, comparison.after).share.center


def _why(what: str, tried: Sequence[Outcome | None]) -> str:
    reasons = dict.fromkeys(each.reason for each in tried if each is not None and each.reason)
    return "; ".join(reasons) or f"{what}: not timed"


# In the order of the published guide: first whether there is a problem at all, then the reasons
# that cost nothing to mend, then those that change the training.
RULES = (
    Rule(
        "low_utilization",
        "Low utilization",
        low_utilization,
        "The other findings say which of the usual reasons it is.",
    ),
    Rule(
        "loader_processes",
        "Starting loader processes",
        gain_of("no_workers", "Loader processes cost {share} of the epoch."),
        "Keep the windows in memory and load with workers=0.",
    ),
    Rule(
        "loader_bound",
        "A slow loader",
        gain_of(
            "workers_8", "The device waits for the loader: 8 workers save {share} of the epoch."
        ),
        "Use more workers and a larger prefetch factor.",
    ),
    Rule(
        "preprocessing_bound",
        "Preprocessing",
        preprocessing_bound,
        "Save the windows once and load them.",
    ),
    Rule(
        "batch_too_small",
        "A batch that is too small",
        gain_of("batch_", "The batch is too small: {change} is faster per sample."),
        "Take it only if the loss at equal samples is as good.",
    ),
    Rule(
        "model_too_small",
        "A model that is too small",
        model_too_small,
        "Give the device more per launch: a larger batch, or several models side by side.",
    ),
    Rule(
        "compile_without_effect",
        "torch.compile without effect",
        compile_without_effect,
        "Leave it out, or read TORCH_LOGS=graph_breaks: its compile time is not earned back.",
    ),
    Rule(
        "out_of_memory",
        "Memory",
        out_of_memory,
        "Halve the batch and accumulate gradients; `diagnose batch-size` finds the largest batch.",
    ),
)
