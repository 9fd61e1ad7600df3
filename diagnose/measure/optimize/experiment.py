"""Is the fix real? First the proof of equal results, then interleaved blocks of both sides.

A block is {before, before again, after} in random order. The second "before" is the built-in
control: what it differs by from the first is what this machine calls a difference when there
is none.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from diagnose.measure.clock import Effort, Progress, StoppingRule, Timed, Track, measure
from diagnose.measure.machine.allocations import count_allocations
from diagnose.measure.machine.device import Device
from diagnose.measure.optimize.equality import compare_outcomes, refutes
from diagnose.measure.stage import ENERGY_PERIODS_PER_SLOT
from diagnose.measure.stages.plan import Context
from diagnose.records.experiments import DATA_WAIT, Comparison, Equality
from diagnose.records.header import Reading, Setting
from diagnose.records.run import Measurement
from diagnose.records.sequential import FAMILY_ERROR, Block, anytime_p, decide, ratio_interval
from diagnose.workload import Lab, Ladder, Optimization, Side, Trial

Form = Literal["after", "as published"]

MOST_BLOCKS = 30
# A verdict must still stand among so many experiments of a record.
LARGEST_FAMILY = 40
# A quick ladder must end in minutes, and what it times are epochs: many steps each, so that a
# few of them warm it up.
MOST_BLOCKS_OF_QUICK_LADDER = 12
QUICK_LADDER: Mapping[str, Any] = {"window": 2, "warmup_limit_seconds": 3.0}
# Some twenty blocks of three whole training steps must fit, also in a quick run.
LEAST_LIMIT_SECONDS = 15.0
SLOTS_ONLY = "an experiment compares slots, not single steps"
NOT_COUNTED = Reading(None, "not counted in an experiment")


@dataclass(frozen=True)
class Bench:
    """What an experiment runs with."""

    lab: Lab
    device: Device
    effort: Effort
    least_slot_seconds: float = 0.0
    most_blocks: int = MOST_BLOCKS
    progress: Progress = lambda name, slots, seconds: None


def open_bench(context: Context, energy_period_seconds: float, progress: Progress) -> Bench:
    """The lab at the workload's size."""
    limit = max(context.effort.limit_seconds, LEAST_LIMIT_SECONDS)
    effort, most_blocks = replace(context.effort, limit_seconds=limit), MOST_BLOCKS
    if effort.name == "quick" and _has_long_steps(context):
        effort = replace(effort, **QUICK_LADDER)
        most_blocks = MOST_BLOCKS_OF_QUICK_LADDER
    return Bench(
        lab_of(context),
        context.device,
        effort,
        least_slot_seconds=ENERGY_PERIODS_PER_SLOT * energy_period_seconds,
        most_blocks=most_blocks,
        progress=progress,
    )


def _has_long_steps(context: Context) -> bool:
    if context.workload.treatment is None:
        return False
    treatment = context.workload.treatment()
    return treatment.long_steps or treatment.ladder is not None


def lab_of(context: Context) -> Lab:
    return Lab(context.device.torch, context.size, context.seed, context.data)


def run_experiments(optimization: Optimization, bench: Bench) -> Iterator[Comparison]:
    """One comparison per form and scope, each handed over as soon as it is known."""
    if optimization.parts and not optimization.obstacle(bench.lab):
        yield from _run_bundle(optimization, bench)
        return
    obstacle = optimization.obstacle(bench.lab)
    facts = dict(optimization.facts(bench.lab)) if optimization.facts and not obstacle else {}
    curves, notes = ({}, ()) if obstacle else _finite_curves(optimization, bench.lab)
    sides: list[tuple[Form, Side]] = [
        ("after", optimization.after),
        *(("as published", side) for side in optimization.published),
    ]
    for form, side in sides:
        blank = Comparison(
            key=optimization.key,
            title=optimization.title,
            form=form,
            scope=" / ".join(side.trials),
            before_text=optimization.before.text,
            after_text=side.text,
            status="done",
            facts=facts,
            curves=curves,
            notes=notes,
        )
        if obstacle:
            yield replace(blank, status="skipped", reason=obstacle)
        else:
            lab = replace(bench.lab, condition=side.condition)
            yield from _compare(optimization, side, replace(bench, lab=lab), blank)


def _run_bundle(bundle: Optimization, bench: Bench) -> Iterator[Comparison]:
    """The parts and the whole, all in the same blocks; what is not equal is not timed."""
    proven: list[tuple[Side, Comparison]] = []
    (scope,) = bundle.after.trials
    for each in (*bundle.parts, bundle):
        within = {} if each is bundle else {"within": bundle.key}
        blank = Comparison(
            key=each.key,
            title=each.title,
            form="after",
            scope=scope,
            before_text=each.before.text,
            after_text=each.after.text,
            status="done",
            facts=within,
        )
        if obstacle := each.obstacle(bench.lab):
            yield replace(blank, status="skipped", reason=obstacle)
            continue
        facts = each.facts(bench.lab) if each.facts else {}
        equality = prove(each, each.after, bench.lab)
        row = replace(blank, facts={**facts, **within}, equality=equality)
        if refutes(equality):
            yield row
        else:
            proven.append((each.after, row))
    # As long for each of them as for one alone.
    effort = bench.effort
    longer = replace(effort, limit_seconds=effort.limit_seconds * max(1, len(proven)))
    yield from time_together(bundle.before, proven, scope, replace(bench, effort=longer))


def _finite_curves(
    optimization: Optimization, lab: Lab
) -> tuple[Mapping[str, tuple[float, ...]], tuple[str, ...]]:
    """The losses of both sides; a side that diverged has no curve but a note."""
    curves = optimization.curves(lab) if optimization.curves else {}
    lost = [name for name, losses in curves.items() if not all(map(math.isfinite, losses))]
    kept = {name: losses for name, losses in curves.items() if name not in lost}
    return kept, tuple(f"the loss of {name} is not finite" for name in lost)


def _compare(
    optimization: Optimization, side: Side, bench: Bench, blank: Comparison
) -> Iterator[Comparison]:
    equality = prove(optimization, side, bench.lab)
    proven = replace(blank, equality=equality)
    if refutes(equality):
        yield proven
        return
    for scope in side.trials:
        yield time_scope(optimization.before, side, scope, bench, replace(proven, scope=scope))


def prove(optimization: Optimization, side: Side, lab: Lab) -> Equality:
    """Both sides from the same seed, on the same data."""

    def seeded(each: Side) -> Mapping[str, torch.Tensor]:
        torch.manual_seed(lab.seed)
        return each.outcome(lab)

    return compare_outcomes(
        seeded(optimization.before),
        seeded(side),
        optimization.tolerance,
        claimed=optimization.claims_equality,
    )


def time_scope(before: Side, side: Side, scope: str, bench: Bench, blank: Comparison) -> Comparison:
    """Interleaved blocks of one scope."""
    (made,) = time_together(before, [(side, blank)], scope, bench)
    return made


def time_together(
    before: Side, rows: Sequence[tuple[Side, Comparison]], scope: str, bench: Bench
) -> list[Comparison]:
    """Interleaved blocks of {before, before again, every side}."""
    if not rows:
        return []
    with ExitStack() as opened:
        sides = [before, *(side for side, _ in rows)]
        trials = [opened.enter_context(each.trials[scope](bench.lab)) for each in sides]
        peaks = [_peak_bytes(trial, bench.device) for trial in trials]
        watched = [_Watched(trial) for trial in trials]
        marks = [_parameters(trial) for trial in trials]
        first, *others = watched
        tracks = measure(
            [
                first.timed("before"),
                first.timed("control"),
                *(each.timed(row.key) for each, (_, row) in zip(others, rows, strict=True)),
            ],
            bench.effort,
            bench.device,
            seed=bench.lab.seed,
            least_slot_seconds=bench.least_slot_seconds,
            stop=decided_rule(bench.most_blocks),
            progress=bench.progress,
        )
        changed = [not _unchanged(trial, mark) for trial, mark in zip(trials, marks, strict=True)]
    settings = {
        "sequence_length": bench.lab.size.sequence_length,
        "scope": scope,
        "data": bench.lab.condition,
    }
    base, control, *afters = record_sides(
        tracks,
        [trial.samples_per_step for trial in (trials[0], *trials)],
        [peaks[0], *peaks],
        settings,
        "the step ran on the CPU, which has no NVML" if bench.device.is_cpu else "",
    )
    blocks = len(tracks[0].blocks)
    # What all are compared with has two slots in every block.
    waits = [first.waiting_share(2 * blocks), *(each.waiting_share(blocks) for each in others)]
    made = []
    for (_, row), after, moved, wait in zip(rows, afters, changed[1:], waits[1:], strict=True):
        if changed[0] or moved:
            name = "before" if changed[0] else "after"
            reason = f"the side '{name}' changed its parameters while it was timed"
            made.append(replace(row, status="invalid", reason=reason))
        else:
            facts = {**row.facts, **_wait_facts(waits[0], wait)}
            made.append(replace(row, before=base, control=control, after=after, facts=facts))
    return made


def measure_ladder_step(ladder: Ladder, keys: Sequence[str], bench: Bench) -> Comparison:
    """What the changes bring together: {base, base again, base with all these changes}."""
    settings = dict(ladder.base)
    for key in keys:
        settings.update(ladder.patches[key])
    # The results were compared before, change by change.
    before, after = (
        Side(text, lambda lab: {}, {ladder.scope: ladder.open(chosen)})
        for text, chosen in (("as it was", ladder.base), (f"with {', '.join(keys)}", settings))
    )
    blank = Comparison(
        key=keys[-1],
        title=" + ".join(keys),
        form="after",
        scope=ladder.scope,
        before_text=before.text,
        after_text=after.text,
        status="done",
        facts={"added": keys[-1]},
    )
    return time_scope(before, after, ladder.scope, bench, blank)


def record_sides(
    tracks: Sequence[Track],
    samples: Sequence[int],
    peaks: Sequence[Reading],
    settings: Mapping[str, Setting],
    gpus_reason: str,
) -> list[Measurement]:
    """Of {before, control, after}, or with more than one "after" in the same blocks."""
    names = ["before", "control", *["after"] * (len(tracks) - 2)]
    return [
        Measurement(
            name=name,
            role="result" if name == "after" else "reference",
            settings={"batch_size": count, **settings},
            # Slots are all that a comparison is made of.
            timing=replace(
                track.timing(), step_seconds=(), step_clock="none", step_clock_reason=SLOTS_ONLY
            ),
            samples_per_step=count,
            flops_per_step=NOT_COUNTED,
            bytes_per_step=NOT_COUNTED,
            peak_bytes=peak,
            gpus_reason=gpus_reason,
        )
        for name, track, count, peak in zip(names, tracks, samples, peaks, strict=True)
    ]


def decided_rule(most_blocks: int = MOST_BLOCKS) -> StoppingRule:
    """Stop as soon as every change has its verdict: the interval holds whenever one looks."""

    def missing(steps: Sequence[Sequence[float]]) -> Sequence[str]:
        before, control, *afters = steps
        if len(before) >= most_blocks:
            return [""] * len(steps)
        reasons = [
            _undecided([Block(*each) for each in zip(before, control, after, strict=True)])
            for after in afters
        ]
        # What all are compared with goes on until the last of them is decided.
        common = next(filter(None, reasons), "")
        return [common, common, *reasons]

    return missing


def _undecided(blocks: Sequence[Block]) -> str:
    verdict = decide(ratio_interval(blocks))
    if verdict == "SAME" or (
        verdict != "INCONCLUSIVE" and anytime_p(blocks) <= FAMILY_ERROR / LARGEST_FAMILY
    ):
        return ""
    return f"undecided after {len(blocks)} blocks"


class _Watched:
    """A trial whose waits for data are counted within the slots, not in the warm-up."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self._slots: list[tuple[float, float]] = []  # seconds, of them waited
        self._began = 0.0, 0.0

    def timed(self, name: str) -> Timed:
        return Timed(name, self._trial.step, self._before_slot, self._after_slot)

    def waiting_share(self, slots: int) -> float | None:
        """Of the last slots, which are those that count; None without a loader."""
        if self._trial.waited is None:
            return None
        kept = self._slots[-slots:]
        return sum(waited for _, waited in kept) / sum(seconds for seconds, _ in kept)

    def _now(self) -> tuple[float, float]:
        return time.perf_counter(), self._trial.waited() if self._trial.waited else 0.0

    def _before_slot(self) -> None:
        self._trial.before_slot()
        self._began = self._now()

    def _after_slot(self) -> None:
        ended = self._now()
        self._slots.append((ended[0] - self._began[0], ended[1] - self._began[1]))
        self._trial.after_slot()


def _wait_facts(before: float | None, after: float | None) -> Mapping[str, Setting]:
    if before is None or after is None:
        return {}
    shares = {"before": before, "after": after}
    return {DATA_WAIT.format(side): round(share, 4) for side, share in shares.items()}


def _peak_bytes(trial: Trial, device: Device) -> Reading:
    """Of one warm step: what the allocator held, or on the CPU what the step itself took."""
    if not trial.in_this_process:
        return Reading(None, "other processes do the work")
    trial.before_slot()
    trial.step()
    device.synchronize()
    if device.is_cpu:
        return Reading(float(count_allocations(trial.step, device).peak_bytes))
    device.reset_peak()
    trial.step()
    device.synchronize()
    return device.peak_bytes()


def _parameters(trial: Trial) -> list[torch.Tensor]:
    return [each.detach().clone() for each in trial.parameters()] if trial.parameters else []


def _unchanged(trial: Trial, mark: Sequence[torch.Tensor]) -> bool:
    if trial.parameters is None:
        return True
    return all(torch.equal(a, b) for a, b in zip(trial.parameters(), mark, strict=True))
