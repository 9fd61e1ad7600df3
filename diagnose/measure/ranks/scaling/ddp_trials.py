"""Does an option of data parallelism help? Counted and proven on all ranks, then timed."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist

from diagnose.measure.clock import Effort, StoppingRule, Timed, Track, measure
from diagnose.measure.machine.device import Device
from diagnose.measure.optimize.equality import compare_outcomes
from diagnose.measure.optimize.experiment import NOT_COUNTED, wide_enough_rule
from diagnose.measure.peers import Failure, StepFailed, attempt, raise_shared
from diagnose.measure.ranks.job.member import Member, describe_error
from diagnose.measure.ranks.scaling.options import (
    DEFAULT,
    GRADIENT_TOLERANCE,
    UPDATE_TOLERANCE,
    After,
    Experiment,
    Proof,
    Way,
)
from diagnose.measure.ranks.scaling.replica import PROOF_LEARNING_RATE, BucketLog, RankLab, Replica
from diagnose.records.experiments import Comparison, Equality, EqualityCheck
from diagnose.records.header import Reading, Setting
from diagnose.records.run import Measurement

T = TypeVar("T")

SCOPE = "optimiser step"
# An option that fails on one rank only leaves the others in a collective; they must give up
# before the rank that waits to hear of them does.
SHARE_OF_TIMEOUT = 0.5


@dataclass(frozen=True)
class Seen:
    """What one way does, apart from the time it takes."""

    results: Mapping[Proof, torch.Tensor]  # on the host
    spreads: Mapping[Proof, float]  # the farthest that any rank is from another, in the unit
    bucket_bytes: tuple[int, ...]  # of the all-reduces of one optimiser step, in their order
    held_bytes: int
    peak_bytes: Reading


class Trials:
    """Experiments on one job, one after the other."""

    def __init__(self, member: Member, lab: RankLab, effort: Effort) -> None:
        self._member = member
        self._lab = lab
        self._effort = effort
        self._peaks: dict[Way, Reading] = {}
        self._default: Seen | None = None

    def look_at_default(self) -> Seen:
        """The usual way, which most changes start from, is kept."""
        if self._default is None:
            self._default = self._look_at(DEFAULT, ("gradients", "updates"))
        return self._default

    def _look_at(self, way: Way, proofs: Sequence[Proof]) -> Seen:
        """Count and prove one way; StepFailed on every rank if any of them fails."""
        seen = self._share(lambda: _look(self._new_lab(), way, self._member, proofs))
        self._peaks[way] = seen.peak_bytes
        return seen

    def run(self, experiment: Experiment) -> Iterator[Comparison]:
        """One comparison for every change; one that fails is a row like the others."""
        rows = [_blank(experiment.before, after) for after in experiment.afters]
        proven: list[tuple[After, Comparison]] = []
        for after, blank in zip(experiment.afters, rows, strict=True):
            row = self._prove(experiment.before, after, blank)
            # Only rank 0 has compared, and all must go on with the same.
            if self._member.broadcast(_may_be_timed(row)):
                proven.append((after, row))
            else:
                yield row
        if proven:
            yield from self._time(experiment.before, proven)

    def _prove(self, before: Way, after: After, blank: Comparison) -> Comparison:
        self._member.at(f"proof of '{after.key}'")
        obstacle = self._find_obstacle(before, after.way)
        if obstacle:
            return replace(blank, status="skipped", reason=obstacle)
        try:
            first = (
                self.look_at_default()
                if before == DEFAULT
                else self._look_at(before, [after.proves])
            )
            last = self._look_at(after.way, [after.proves])
        except StepFailed as failure:
            return replace(blank, status="failed", reason=str(failure))
        return replace(
            blank, equality=compare_ways(first, last, after), facts=_tell_facts(first, last)
        )

    def _find_obstacle(self, before: Way, after: Way) -> str:
        """Why a change cannot be tried here, or ""."""
        if before.find_unused and self._lab.needs_find_unused:
            return "some parameters of this job get no gradient, so DDP has to search for them"
        if after.compress == "bfloat16" and self._member.device.is_cpu:
            return "torch registers its bfloat16 hook for CUDA and XPU only, not for the CPU"
        return ""

    def _time(
        self, before: Way, proven: Sequence[tuple[After, Comparison]]
    ) -> Iterator[Comparison]:
        try:
            tracks, samples = self._measure(before, [after.way for after, _ in proven])
        except StepFailed as failure:
            # Which of them it was shows when each is timed without the others.
            if len(proven) > 1:
                for each in proven:
                    yield from self._time(before, [each])
            else:
                yield replace(proven[0][1], status="failed", reason=str(failure))
            return
        sides = [self._record(track, count) for track, count in zip(tracks, samples, strict=True)]
        for (after, row), side in zip(proven, sides[2:], strict=True):
            peaks = [self._peaks[way] for way in (before, before, after.way)]
            names = ("before", "control", "after")
            made = [
                replace(each, name=name, peak_bytes=peak)
                for each, name, peak in zip((*sides[:2], side), names, peaks, strict=True)
            ]
            yield replace(row, before=made[0], control=made[1], after=made[2])

    def _measure(self, before: Way, ways: Sequence[Way]) -> tuple[list[Track], list[int]]:
        lab = self._new_lab()
        replicas = self._share(lambda: [Replica(lab, way) for way in (before, *ways)])
        first, *others = replicas
        variants = [
            Timed("before", first.step),
            Timed("control", first.step),
            *(Timed(way.text, each.step) for way, each in zip(ways, others, strict=True)),
        ]
        tracks = measure(
            variants,
            self._effort,
            self._member.device,
            peers=self._member,
            seed=self._lab.seed,
            stop=every_change_rule(len(ways)),
            describe=self._describe,
        )
        return tracks, [each.samples_per_step for each in (first, first, *others)]

    def _new_lab(self) -> RankLab:
        """With a group of its own: one that a failure has broken is of no use afterwards."""
        gc.collect()
        seconds = self._member.timeout_seconds * SHARE_OF_TIMEOUT
        group = dist.new_group(timeout=timedelta(seconds=seconds))
        assert isinstance(group, dist.ProcessGroup)
        return replace(self._lab, group=group)

    def _share(self, work: Callable[[], T]) -> T:
        """The work's result, or StepFailed on all ranks if it failed on any."""
        results: list[T] = []
        failure = attempt(lambda: results.append(work()), self._describe)
        raise_shared(self._member.gather_objects(failure))
        return results[0]

    def _describe(self, error: Exception) -> Failure:
        kind, text = describe_error(error, self._member.timeout_seconds * SHARE_OF_TIMEOUT)
        return str(kind), text

    def _record(self, track: Track, samples: int) -> Measurement:
        return Measurement(
            name=track.variant.name,
            role="reference" if track.variant.name in ("before", "control") else "result",
            settings={"batch_size": samples, "ranks": self._member.world_size, "scope": SCOPE},
            timing=track.timing(),
            samples_per_step=samples,
            flops_per_step=NOT_COUNTED,
            bytes_per_step=NOT_COUNTED,
            peak_bytes=NOT_COUNTED,
            gpus_reason="power is measured over the full step of all ranks, not by option",
        )


def every_change_rule(changes: int) -> StoppingRule:
    """Every change must be decided against the same {before, control}."""
    decide = wide_enough_rule()

    def missing(slots: Sequence[Sequence[float]]) -> Sequence[str]:
        before, control, *afters = slots
        found = [decide([before, control, after])[2] for after in afters]
        assert len(found) == changes
        common = next(filter(None, found), "")
        return [common, common, *found]

    return missing


def _look(lab: RankLab, way: Way, member: Member, proofs: Sequence[Proof]) -> Seen:
    """Two replicas: one that counts through a hook, and one as it will be timed."""
    log = BucketLog()
    counted = Replica(lab, way, log=log)
    # DDP arranges its buckets anew after the first step, with static_graph after the second.
    for _ in range(2):
        counted.step()
    log.clear()
    counted.step()
    bucket_bytes = tuple(log.nbytes)
    held = counted.held_bytes()
    del counted
    replica = Replica(lab, way, learning_rate=PROOF_LEARNING_RATE)
    results: dict[Proof, torch.Tensor] = {}
    spreads: dict[Proof, float] = {}
    for proof in proofs:
        # Each rank draws its own random numbers, and the same ones for every way.
        torch.manual_seed(lab.seed + lab.rank)
        found = replica.gradients() if proof == "gradients" else replica.updates()
        spreads[proof] = _spread(found, lab.group) / find_unit(found, proof)
        results[proof] = found.cpu()
    peak = _measure_peak(replica, member.device, held)
    return Seen(results, spreads, bucket_bytes, held, peak)


def _measure_peak(replica: Replica, device: Device, held_bytes: int) -> Reading:
    """Of one step. A process on the CPU keeps what it frees, so there the tensors are counted."""
    if device.is_cpu:
        return Reading(float(held_bytes), "weights, gradients, buckets and state, counted")
    device.synchronize()
    device.reset_peak()
    replica.step()
    device.synchronize()
    return device.peak_bytes()


def _spread(tensor: torch.Tensor, group: dist.ProcessGroup) -> float:
    """The largest difference between two ranks, of all elements."""
    highest, lowest = tensor.clone(), tensor.clone()
    dist.all_reduce(highest, op=dist.ReduceOp.MAX, group=group)
    dist.all_reduce(lowest, op=dist.ReduceOp.MIN, group=group)
    return float((highest - lowest).max())


def find_unit(result: torch.Tensor, proof: Proof) -> float:
    """Gradients may be far below 1, where any two would pass for equal."""
    if proof == "updates":
        return 1.0
    return float(result.double().square().mean().sqrt()) or 1.0


def compare_ways(before: Seen, after: Seen, change: After) -> Equality:
    """Both ways against each other, and the ranks of the second among themselves."""
    proof = change.proves
    tolerance = GRADIENT_TOLERANCE if proof == "gradients" else UPDATE_TOLERANCE
    unit = find_unit(before.results[proof], proof)
    equality = compare_outcomes(
        {proof: before.results[proof] / unit},
        {proof: after.results[proof] / unit},
        tolerance,
        claimed=change.claims_equality,
    )
    spread = after.spreads[proof]
    finite = math.isfinite(spread)
    ranks = EqualityCheck(
        name=f"{proof} of all ranks",
        tolerance=tolerance,
        worst=spread if finite else None,
        differing_samples=None,
        samples=0,
        equal=finite and spread <= tolerance,
        remark="" if finite else "not finite",
    )
    return replace(equality, checks=(*equality.checks, ranks), remark=change.remark)


def _tell_facts(before: Seen, after: Seen) -> Mapping[str, Setting]:
    """Of one optimiser step of one rank."""
    facts: dict[str, Setting] = {}
    for name, seen in (("before", before), ("after", after)):
        if seen.bucket_bytes:
            facts[f"all_reduces_{name}"] = len(seen.bucket_bytes)
            facts[f"reduced_bytes_{name}"] = sum(seen.bucket_bytes)
        facts[f"held_bytes_{name}"] = seen.held_bytes
    return facts


def _may_be_timed(row: Comparison) -> bool:
    """A faster way to another result is not faster."""
    if row.status != "done" or row.equality is None:
        return False
    return row.equality.claim != "equal" or all(check.equal for check in row.equality.checks)


def _blank(before: Way, after: After) -> Comparison:
    return Comparison(
        key=after.key,
        title=after.title,
        form=after.form,
        scope=SCOPE,
        before_text=before.text,
        after_text=after.way.text,
        status="done",
    )
