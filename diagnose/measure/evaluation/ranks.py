"""How do ranks answer questions together? Each its share, once for each cap of image tiles.

Every rank answers every so many-th question and writes its own file; nobody waits in a
collective for as long as others may still be answering. Whoever leads the job merges the files
of a cap once all of them are finished.
"""

from __future__ import annotations

import secrets
import shutil
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from diagnose.measure.batch_size.memory import release
from diagnose.measure.batch_size.plan import MAX_CROPS, Wanted, list_estimates, plan_configurations
from diagnose.measure.evaluation.answering import answer_questions
from diagnose.measure.evaluation.fallback import Fitting
from diagnose.measure.evaluation.opening import Evaluation, in_one_line, open_evaluation
from diagnose.measure.evaluation.partial import Part, finished_path, keep_only, share_of
from diagnose.measure.ranks.job.member import Member
from diagnose.measure.ranks.job.rendezvous import Refusal
from diagnose.measure.session import Refused
from diagnose.records.codec import from_dict, to_dict
from diagnose.records.evaluation import Fallback
from diagnose.records.evaluation_options import (
    Begun,
    EvaluationOptions,
    cap_folder,
    parts_folder,
)
from diagnose.records.files import write_file
from diagnose.workload import WorkloadError

# How often a finished rank looks whether the others are.
LOOK_SECONDS = 0.1


def run(member: Member, request: Mapping[str, Any]) -> None:
    """Emits "begin", then "progress" and "fallback", and "answered" when a cap is."""
    options = from_dict(EvaluationOptions, request["evaluation"], "request")
    member.at("loading of the model")
    try:
        job = open_evaluation(options, member.device, member.local_world_size)
        for max_crops in _agree(member, options, job):
            _evaluate(member, options, job, max_crops)
    except (WorkloadError, Refused) as error:
        raise Refusal(in_one_line(error)) from None


def _agree(member: Member, options: EvaluationOptions, job: Evaluation) -> list[int | None]:
    """The caps that are to be done, on every rank; Refusal if they do not share a file system."""
    folder, token = parts_folder(Path(options.output)), secrets.token_hex(8)
    seal = folder / ".job"
    caps = _plan(options, job)
    todo: list[int | None] = [None]
    if member.rank == 0:
        _require_same_settings(options, job)
        if not options.resume:
            for stale in folder.glob("*/"):
                shutil.rmtree(stale)
        planned = (*options.done, *(cap for cap in caps if cap not in options.done))
        todo = [None] if options.max_crops is None else list(planned[len(options.done) :])
        begun = Begun(job.settings, planned, member.world_size, len(job.questions), job.batch_size)
        member.emit("begin", to_dict(begun))
        write_file(seal, lambda part: part.write_text(token))
    token, todo = member.broadcast((token, todo))
    if not seal.exists() or seal.read_text() != token:
        raise Refusal(
            f"rank {member.rank} does not see the files of rank 0 in {folder}; "
            "--output must be on a file system that all hosts share"
        )
    return todo


def _plan(options: EvaluationOptions, job: Evaluation) -> tuple[int, ...]:
    if options.max_crops is None:
        return ()
    asked = Wanted(max_crops=options.max_crops or MAX_CROPS, start_from=options.start_from)
    keys = plan_configurations(str(job.settings["workload"]), job.shape, asked)
    return tuple(dict.fromkeys(int(key.split()[-1]) for key in keys))


def _require_same_settings(options: EvaluationOptions, job: Evaluation) -> None:
    earlier = options.settings
    for name, value in job.settings.items():
        if earlier is not None and earlier.get(name) != value:
            raise Refusal(
                f"{options.output} was made with {name} {earlier.get(name)}, not {value}; "
                "resume it with the settings that it was begun with, or choose another --output"
            )


def _evaluate(
    member: Member, options: EvaluationOptions, job: Evaluation, max_crops: int | None
) -> None:
    cap = "" if max_crops is None else f" max_crops {max_crops}"
    member.at(f"evaluation{cap and ' with'}{cap}")
    folder = cap_folder(Path(options.output), max_crops)
    kept = member.broadcast(keep_only(folder) if member.rank == 0 else None)
    mine = share_of(job.questions, kept, member.rank, member.world_size)

    def report(fallback: Fallback) -> None:
        where = {"rank": member.rank, "max_crops": max_crops}
        member.emit("fallback", {**where, "fallback": to_dict(fallback)})

    start, attempts = job.batch_size, 0
    if options.auto_adjust:
        start = list_estimates(None, 0, job.batch_size, max_crops)[0].high
        attempts = options.max_attempts
    fitting = Fitting(
        start,
        ceiling=job.batch_size,
        attempts=attempts,
        on_fallback=report,
        release=partial(release, member.device),
    )
    ranks = "" if member.world_size == 1 else f" rank 0 of {member.world_size}"
    what = ",".join(filter(None, (cap, ranks))).lstrip()
    done, began = 0, time.monotonic()
    with Part(folder, member.rank) as part:
        for step in answer_questions(
            job.generator,
            mine,
            job.decoding,
            fitting,
            max_crops=max_crops,
            workers=options.num_workers,
        ):
            part.add(step)
            member.still()
            done += len(step.answers)
            counted = {"what": what and f"{what}: ", "done": done, "planned": len(mine)}
            member.emit("progress", {**counted, "seconds": time.monotonic() - began})
        part.finish()
    _wait_for_all(member, folder)
    member.at(f"merge{cap and ' of'}{cap}")
    # From here on nobody looks into the folder any more.
    member.barrier()
    member.emit("answered", max_crops)


def _wait_for_all(member: Member, folder: Path) -> None:
    """Not in a collective, which would lose patience: others may have far longer to answer."""
    while not all(finished_path(folder, rank).exists() for rank in range(member.world_size)):
        member.still()
        time.sleep(LOOK_SECONDS)
