"""Does an option of data parallelism help? Counted and proven on all ranks, then timed."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist

from diagnose.measure.clock import Effort, Timed, measure
from diagnose.measure.machine.device import Device
from diagnose.measure.optimize.equality import compare_outcomes, refutes
from diagnose.measure.optimize.experiment import decided_rule, record_sides
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
class WayFacts:
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
        self._default: WayFacts | None = None

    def look_at_default(self) -> WayFacts:
        """The usual way, which most changes start from, is kept."""
        if self._default is None:
            self._default = self._look_at(DEFAULT, ("gradients", "updates"))
        return self._default

    def _look_at(self, way: Way, proofs: Sequence[Proof]) -> WayFacts:
        """Count and prove one way; StepFailed on every rank if any of them fails."""
        with self._open_lab() as lab:
            seen = self._share(lambda: _look(lab, way, self._member, proofs))
        self._peaks[way] = seen.peak_bytes
        return seen

    def run(self, experiment: Experiment) -> Iterator[Comparison]:
        """One comparison for every change; one that fails is a row like the others."""
        proven: list[tuple[After, Comparison]] = []
        for after in experiment.afters:
            row = self._prove(experiment.before, after)
            # Only rank 0 has compared, and all must go on with the same.
            if self._member.broadcast(row.equality is not None and not refutes(row.equality)):
                proven.append((after, row))
            else:
                yield row
        if proven:
            yield from self._time(experiment.before, proven)

    def _prove(self, before: Way, after: After) -> Comparison:
        self._member.at(f"proof of '{after.key}'")
        blank = Comparison(
            key=after.key,
            title=after.title,
            form=after.form,
            scope=SCOPE,
            before_text=before.text,
            after_text=after.way.text,
            status="done",
        )
        obstacle = self._find_obstacle(before, after.way)
        if obstacle:
            return replace(blank, status="skipped", reason=obstacle)
        usual = before == DEFAULT
        try:
            first = self.look_at_default() if usual else self._look_at(before, [after.proves])
            last = self._look_at(after.way, [after.proves])
        except StepFailed as failure:
            return replace(blank, status="failed", reason=str(failure))
        return replace(
            blank, equality=compare_ways(first, last, after), facts=_list_facts(first, last)
        )

    def _find_obstacle(self, before: Way, after: Way) -> str:
        """Why a change cannot be tried here, or ""."""
        if before.find_unused and self._lab.needs_find_unused:
            return "some parameters of this job get no gradient, so DDP has to search for them"
        if after.workers is not None and self._lab.load is None:
            return "this job has no dataset that loader processes could share out"
        if after.compress == "bfloat16" and self._member.device.is_cpu:
            return "torch registers its bfloat16 hook for CUDA and XPU only, not for the CPU"
        return ""

    def _time(
        self, before: Way, proven: Sequence[tuple[After, Comparison]]
    ) -> Iterator[Comparison]:
        try:
            with self._open_lab() as lab:
                sides = self._measure(lab, [before, *(after.way for after, _ in proven)])
        except StepFailed as failure:
            # Which of them it was shows when each is timed without the others.
            if len(proven) > 1:
                for each in proven:
                    yield from self._time(before, [each])
            else:
                yield replace(proven[0][1], status="failed", reason=str(failure))
            return
        for (_, row), side in zip(proven, sides[2:], strict=True):
            yield replace(row, before=sides[0], control=sides[1], after=side)

    def _measure(self, lab: RankLab, ways: Sequence[Way]) -> list[Measurement]:
        """The first way, the same again as control, and the others."""
        replicas = self._share(lambda: [Replica(lab, way) for way in ways])
        first, *others = replicas
        variants = [
            Timed("before", first.step, first.drain, first.settle),
            Timed("control", first.step, first.drain, first.settle),
            *(
                Timed(way.text, each.step, each.drain, each.settle)
                for way, each in zip(ways[1:], others, strict=True)
            ),
        ]
        tracks = measure(
            variants,
            self._effort,
            self._member.device,
            peers=self._member,
            seed=lab.seed,
            stop=decided_rule(),
            describe=self._describe,
        )
        return record_sides(
            tracks,
            [each.samples_per_step for each in (first, *replicas)],
            [self._peaks[way] for way in (ways[0], *ways)],
            {"ranks": self._member.world_size, "scope": SCOPE},
            "power is measured over the full step of all ranks, not by option",
        )

    @contextmanager
    def _open_lab(self) -> Iterator[RankLab]:
        """With a group of its own: one that a failure has broken is of no use afterwards.

        The group ends with the trial, because NCCL keeps half a gigabyte for each.
        """
        seconds = self._member.timeout_seconds * SHARE_OF_TIMEOUT
        group = dist.new_group(timeout=timedelta(seconds=seconds))
        assert isinstance(group, dist.ProcessGroup)
        try:
            yield replace(self._lab, group=group)
        except StepFailed:
            # Every rank is here; after any other error one may be gone, and would be waited for.
            _end(group)
            raise
        _end(group)

    def _share(self, work: Callable[[], T]) -> T:
        """The work's result, or StepFailed on all ranks if it failed on any."""
        results: list[T] = []
        failure = attempt(lambda: results.append(work()), self._describe)
        raise_shared(self._member.gather_objects(failure))
        return results[0]

    def _describe(self, error: Exception) -> Failure:
        kind, text = describe_error(error, self._member.timeout_seconds * SHARE_OF_TIMEOUT)
        return str(kind), text


def _end(group: dist.ProcessGroup) -> None:
    gc.collect()  # replicas hold on to their group, and to each other in circles
    dist.destroy_process_group(group)


def _look(lab: RankLab, way: Way, member: Member, proofs: Sequence[Proof]) -> WayFacts:
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
    return WayFacts(results, spreads, bucket_bytes, held, peak)


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


def compare_ways(before: WayFacts, after: WayFacts, change: After) -> Equality:
    """Both ways against each other, and the ranks of the second among themselves."""
    proof = change.proves
    tolerance = GRADIENT_TOLERANCE if proof == "gradients" else UPDATE_TOLERANCE
    unit = find_unit(before.results[proof], proof)
    equality = compare_outcomes(
        {proof: before.results[proof] / unit},
        {proof: after.results[proof] / unit},
        tolerance,
        claimed=not change.differs,
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
    return replace(equality, checks=(*equality.checks, ranks), remark=change.differs)


def _list_facts(before: WayFacts, after: WayFacts) -> Mapping[str, Setting]:
    """Of one optimiser step of one rank."""
    facts: dict[str, Setting] = {}
    for name, seen in (("before", before), ("after", after)):
        if seen.bucket_bytes:
            facts[f"all_reduces_{name}"] = len(seen.bucket_bytes)
            facts[f"reduced_bytes_{name}"] = sum(seen.bucket_bytes)
        facts[f"held_bytes_{name}"] = seen.held_bytes
    return facts
