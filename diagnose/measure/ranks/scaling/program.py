"""Why are several ranks slower than one? The ledger's series, the link, the options, the cadence.

A program of the ranks: everything is emitted as soon as it is known, so that whatever ends the
job leaves what was measured before.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from diagnose.measure.clock import EFFORTS, FULL, QUICK, Effort, Track, measure
from diagnose.measure.jobs import load, source_sha256
from diagnose.measure.machine.fitting import fit
from diagnose.measure.ranks.job.member import Member
from diagnose.measure.ranks.job.rendezvous import Refusal
from diagnose.measure.ranks.link.allreduce import PlannedSize, measure_sizes
from diagnose.measure.ranks.scaling.costs import measure_cadence, measure_watts, open_evaluation
from diagnose.measure.ranks.scaling.ddp_trials import Trials
from diagnose.measure.ranks.scaling.ledger import Forms, precise_series_rule, to_series
from diagnose.measure.ranks.scaling.options import select
from diagnose.measure.ranks.scaling.rank_input import (
    RankInput,
    find_obstacle,
    open_input,
    own_batches,
)
from diagnose.measure.ranks.scaling.replica import LossOf, RankLab, find_unused
from diagnose.measure.stages.plan import Context
from diagnose.measure.stages.real_data import usual_precision
from diagnose.measure.stages.steps import full_precision, precision_name
from diagnose.records.codec import to_dict
from diagnose.records.ranks import SERIES_NAMES
from diagnose.workload import Size, Workload, WorkloadError

# On the CPU the ranks share the processors, and every option takes dozens of steps. Four samples
# can still be divided into the quarters that one of the options needs.
BATCH_SIZE_ON_CPU = 4
SIZE_ON_CPU = "ranks"
# Nine families of options and the ledger in four minutes on two cores.
QUICK_WARMUP_SECONDS = 2.0
QUICK_LIMIT_SECONDS = 18.0


def run(member: Member, request: Mapping[str, Any]) -> None:
    """Measure the job.

    The request: "workload", "size", "batch_size" and "data" or None for the usual ones; "effort"
    or None; "seed"; and "only", the keys of the options to try.
    """
    member.at("loading of the workload")
    context = _open(member, request)
    model, low = _build(context, member)
    source = open_input(context, member)
    unused = find_unused(LossOf(context.workload.model, model, low), source.resident())
    # A parameter may be of use on one rank's data only, and all must wrap the model alike.
    unused = sorted({name for names in member.gather_objects(unused) for name in names})
    world = dist.group.WORLD
    assert world is not None

    def build() -> LossOf:
        return LossOf(context.workload.model, _fresh_model(context), low)

    lab = RankLab(
        build=build,
        batches=own_batches(context, member),
        batch_size=context.size.batch_size,
        seed=context.seed,
        group=world,
        needs_find_unused=bool(unused),
        load=None
        if find_obstacle(context, member.world_size)
        else lambda workers: open_input(context, member, workers),
    )
    trials = Trials(member, lab, context.effort)
    member.emit("job", _describe(context, request, source, low, unused))
    member.at("count of DDP's buckets")
    buckets = trials.look_at_default().bucket_bytes
    member.emit("buckets", buckets)
    forms = Forms(LossOf(context.workload.model, model, low).train(), bool(unused), source)
    _measure_ledger(member, context, forms)
    _measure_curve(member, context.effort, buckets)
    rows = None if find_obstacle(context, member.world_size) else open_evaluation(context)
    cost = measure_cadence(member, context.workload.model, model, forms.optimizer, rows)
    member.emit("cadence", to_dict(cost))
    del forms
    for experiment in select(tuple(request["only"])):
        for comparison in trials.run(experiment):
            member.emit("comparison", to_dict(comparison))


def _open(member: Member, request: Mapping[str, Any]) -> Context:
    try:
        workload = load(request["workload"])
        size_name, size = workload.size(
            request["size"] or _usual_size(workload, member), member.device.kind
        )
    except WorkloadError as error:
        raise Refusal(str(error)) from None
    data = Path(request["data"]) if request["data"] else None
    if data and not workload.datasets:
        raise Refusal(f"workload {workload.name} has no datasets, so --data has no use")
    usual = QUICK if member.device.is_cpu else FULL
    size = _choose_size(size, request["batch_size"], member)
    size, sized_down = size_down(workload, size, request, member)
    context = Context(
        device=member.device,
        workload=workload,
        size_name=size_name,
        size=size,
        effort=choose_effort(EFFORTS.get(request["effort"] or "", usual)),
        seed=request["seed"],
        data=data,
        sized_down=sized_down,
    )
    _prepare_data(member, context)
    return context


def _usual_size(workload: Workload, member: Member) -> str | None:
    """A workload may have a size for ranks that share one CPU; None is the device's usual one."""
    return SIZE_ON_CPU if member.device.is_cpu and SIZE_ON_CPU in workload.sizes else None


def _choose_size(size: Size, asked: int | None, member: Member) -> Size:
    usual = min(size.batch_size, BATCH_SIZE_ON_CPU) if member.device.is_cpu else size.batch_size
    return replace(size, batch_size=asked or usual)


def size_down(
    workload: Workload, size: Size, request: Mapping[str, Any], member: Member
) -> tuple[Size, str]:
    """To the rank with the least free memory, unless a size was asked for; and why.

    Beside the job itself, all ways to train that are compared are in memory at once.
    """
    frees = member.gather_objects(member.device.free_bytes())
    if request["size"] or request["batch_size"] or None in frees:
        return size, ""
    others = max((len(each.afters) for each in select(tuple(request["only"]))), default=0)
    return fit(workload, size, min(frees), 1 + others)


def choose_effort(effort: Effort) -> Effort:
    """Each of a dozen measurements gets its share of the time of a quick run."""
    if effort.name != QUICK.name:
        return effort
    return replace(
        effort, warmup_limit_seconds=QUICK_WARMUP_SECONDS, limit_seconds=QUICK_LIMIT_SECONDS
    )


def _prepare_data(member: Member, context: Context) -> None:
    """One rank of each host first, because preparing writes files that the others then read."""
    storages = list(context.workload.datasets)[:1]
    for first in (True, False):
        if (member.local_rank == 0) is first:
            try:
                for storage in storages:
                    context.dataset(storage)
            except WorkloadError as error:
                raise Refusal(str(error)) from None
        member.barrier()


def _build(context: Context, member: Member) -> tuple[torch.nn.Module, torch.dtype | None]:
    """The model, and what autocast computes in where the job would use it; rank 0 decides."""
    mixed = member.broadcast(usual_precision(context))
    low = context.device.low_precision if mixed else None
    model = context.model(context.workload.model)
    if not any(each.requires_grad for each in model.parameters()):
        raise Refusal(f"the model of workload {context.workload.name} has nothing to train")
    return model, low


def _fresh_model(context: Context) -> torch.nn.Module:
    torch.manual_seed(context.seed)
    return context.workload.model.build(context.size).to(context.device.torch)


def _describe(
    context: Context,
    request: Mapping[str, Any],
    source: RankInput,
    low: torch.dtype | None,
    unused: list[str],
) -> dict[str, Any]:
    weights = context.model(context.workload.model).parameters()
    gradient_bytes = sum(each.nbytes for each in weights if each.requires_grad)
    return {
        "workload": to_dict(context.facts(source_sha256(request["workload"]))),
        "effort": context.effort.name,
        "samples_per_step": context.size.batch_size,
        "gradient_bytes": gradient_bytes,
        "settings": {
            "precision": precision_name(context.device) if low else full_precision(context.device),
            "unused_parameters": len(unused),
            **source.settings,
        },
    }


def _measure_ledger(member: Member, context: Context, forms: Forms) -> None:
    member.at("first exchange of gradients")
    torch.manual_seed(context.seed + member.rank)
    forms.settle_buckets()

    def emit(tracks: Sequence[Track]) -> None:
        member.emit("series", [to_dict(each) for each in to_series(tracks)])

    tracks = measure(
        forms.variants(),
        context.effort,
        member.device,
        peers=member,
        seed=context.seed,
        stop=precise_series_rule(context.effort),
        on_block=emit,
    )
    member.emit("backward", forms.time_backward(member))
    full = tracks[SERIES_NAMES.index("together full input")]
    seconds = member.broadcast(statistics.median(full.slowest) / full.steps)
    full.variant.before_slot()
    watts = measure_watts(member, full.variant.step, seconds)
    member.emit("watts", [to_dict(each) for each in watts])


def _measure_curve(member: Member, effort: Effort, bucket_bytes: Sequence[int]) -> None:
    """All-reduces of exactly the buckets' sizes, in the processes that train."""
    plan = [PlannedSize(nbytes, "bucket") for nbytes in sorted(set(bucket_bytes))]
    for result in measure_sizes(member, plan, effort.name):
        member.emit("size", to_dict(result))
