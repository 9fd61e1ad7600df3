"""How well does a model answer at each cap of image tiles? A share of the questions per rank.

Every rank answers every so many-th question and writes its own file; nobody waits in a
collective for as long as others may still be answering. Rank 0 merges the files of a cap once
all of them are finished.
"""

from __future__ import annotations

import dataclasses
import json
import secrets
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from diagnose import __version__
from diagnose.measure.batch_size.estimates import list_estimates
from diagnose.measure.batch_size.plan import MAX_CROPS, plan_configurations
from diagnose.measure.batch_size.plan import Wanted as WantedSizes
from diagnose.measure.evaluation.accuracy import judge, sort_answers, summarise
from diagnose.measure.evaluation.answering import answer_questions
from diagnose.measure.evaluation.opening import (
    Evaluation,
    in_one_line,
    open_evaluation,
    open_fitting,
)
from diagnose.measure.evaluation.partial import Part, finished_path, keep_only, read_steps, share_of
from diagnose.measure.ranks.job.member import Member
from diagnose.measure.ranks.job.rendezvous import Refusal
from diagnose.measure.session import Refused
from diagnose.records.codec import from_dict, to_dict
from diagnose.records.evaluation import AccuracyRow, Fallback, RankStep
from diagnose.records.evaluation_options import (
    ACCURACY_SCHEMA,
    AccuracyResult,
    WantedAccuracy,
    cap_folder,
    parts_folder,
    predictions_folder,
)
from diagnose.records.files import write_file
from diagnose.records.header import Setting
from diagnose.workload import Question, WorkloadError

# How often a finished rank looks whether the others are.
LOOK_SECONDS = 0.1


def run(member: Member, request: Mapping[str, Any]) -> None:
    """Emits one "begin" with the result so far, then "progress", "fallback" and "row"."""
    wanted = from_dict(WantedAccuracy, request["accuracy"], "request")
    member.at("loading of the model")
    try:
        job = open_evaluation(wanted.evaluation, member.device, member.local_world_size)
        caps = _plan(wanted, job)
    except (WorkloadError, Refused) as error:
        raise Refusal(str(error)) from None
    result = _begin(member, wanted, job, caps) if member.rank == 0 else None
    todo = _agree(member, Path(wanted.output), result)
    for max_crops in todo:
        try:
            _evaluate(member, wanted, job, max_crops)
        except WorkloadError as error:
            raise Refusal(in_one_line(error)) from None


def _plan(wanted: WantedAccuracy, job: Evaluation) -> tuple[int, ...]:
    asked = WantedSizes(max_crops=wanted.max_crops or MAX_CROPS, start_from=wanted.start_from)
    keys = plan_configurations(str(job.settings["workload"]), job.shape, asked)
    return tuple(dict.fromkeys(int(key.split()[-1]) for key in keys))


def _begin(
    member: Member, wanted: WantedAccuracy, job: Evaluation, caps: tuple[int, ...]
) -> AccuracyResult:
    """Rank 0: the rows of an earlier attempt that still hold, or a clean start."""
    output = Path(wanted.output)
    earlier = load_result(output) if output.exists() else None
    result = AccuracyResult(ACCURACY_SCHEMA, __version__, job.settings, caps, member.world_size)
    if earlier is not None and wanted.resume:
        _require_same_settings(output, earlier.settings, job.settings)
        done = tuple(row.max_crops for row in earlier.summary)
        planned = (*done, *(cap for cap in caps if cap not in done))
        result = replace(result, planned=planned, summary=earlier.summary)
    elif earlier is not None:
        raise Refusal(
            f"{output} already holds {len(earlier.summary)} of {len(earlier.planned)} max_crops; "
            "go on with --resume, or choose another --output"
        )
    else:
        for stale in parts_folder(output).glob("max_crops-*"):
            shutil.rmtree(stale)
    member.emit("begin", to_dict(result))
    return result


def _require_same_settings(
    output: Path, earlier: Mapping[str, Setting], now: Mapping[str, Setting]
) -> None:
    for name, value in now.items():
        if earlier.get(name) != value:
            raise Refusal(
                f"{output} was made with {name} {earlier.get(name)}, not {value}; "
                "resume it with the settings that it was begun with, or choose another --output"
            )


def load_result(path: Path) -> AccuracyResult:
    """An earlier result; Refusal if the file is something else."""
    try:
        return from_dict(AccuracyResult, json.loads(path.read_text("utf-8")), "result")
    except (OSError, ValueError, RecursionError) as error:
        raise Refusal(
            f"{path} is no result of this script ({error}); choose another --output"
        ) from None


def _agree(member: Member, output: Path, result: AccuracyResult | None) -> list[int]:
    """What is still to be done, on every rank; Refusal if they do not share a file system."""
    folder, token = parts_folder(output), secrets.token_hex(8)
    seal = folder / ".job"
    if result is not None:
        write_file(seal, lambda part: part.write_text(token))
    done = None if result is None else [row.max_crops for row in result.summary]
    planned = None if result is None else result.planned
    token, planned, done = member.broadcast((token, planned, done))
    if not seal.exists() or seal.read_text() != token:
        raise Refusal(
            f"rank {member.rank} does not see the files of rank 0 in {folder}; "
            "--output must be on a file system that all hosts share"
        )
    return [cap for cap in planned if cap not in done]


def _evaluate(member: Member, wanted: WantedAccuracy, job: Evaluation, max_crops: int) -> None:
    member.at(f"evaluation with max_crops {max_crops}")
    folder = cap_folder(Path(wanted.output), max_crops)
    kept = member.broadcast(keep_only(folder) if member.rank == 0 else None)
    mine = share_of(job.questions, kept, member.rank, member.world_size)
    base, attempts = job.batch_size, wanted.max_attempts if wanted.auto_adjust else 0
    start = list_estimates(None, 0, base, max_crops)[0].high if wanted.auto_adjust else base

    def tell(fallback: Fallback) -> None:
        member.emit("fallback", _tell(member.rank, max_crops, fallback))

    fitting = open_fitting(member.device, start, tell, base, attempts)
    done, began = 0, time.monotonic()
    with Part(folder, member.rank) as part:
        for step in answer_questions(
            job.generator,
            mine,
            job.decoding,
            fitting,
            max_crops=max_crops,
            workers=wanted.evaluation.num_workers,
        ):
            part.add(step)
            member.still()
            done += len(step.answers)
            seconds = time.monotonic() - began
            shown = {"max_crops": max_crops, "done": done, "planned": len(mine)}
            member.emit("progress", {**shown, "seconds": seconds, "ranks": member.world_size})
        part.finish()
    _wait_for_all(member, folder)
    member.at(f"merge of max_crops {max_crops}")
    member.barrier()
    if member.rank == 0:
        row = _merge(Path(wanted.output), max_crops, read_steps(folder), job.questions)
        member.emit("row", to_dict(row))
        for each in row.fallback_log:
            if each.rank != member.rank:  # the own ones were told at once
                member.emit("fallback", _tell(each.rank, max_crops, each.fallback))


def _tell(rank: int, max_crops: int, fallback: Fallback) -> str:
    return f"rank {rank}, max_crops {max_crops}: {fallback}"


def _wait_for_all(member: Member, folder: Path) -> None:
    """Not in a collective, which would lose patience: others may have far longer to answer."""
    while not all(finished_path(folder, rank).exists() for rank in range(member.world_size)):
        member.still()
        time.sleep(LOOK_SECONDS)


def _merge(
    output: Path, max_crops: int, steps: Sequence[RankStep], questions: Sequence[Question]
) -> AccuracyRow:
    """Every answer on its line, in the order of the questions, and the row of them all."""
    row = summarise(max_crops, steps, questions)
    lines = [
        {
            **dataclasses.asdict(answer),
            "references": question.references,
            "accuracy": judge(answer, question),
        }
        for answer, question in zip(sort_answers(steps, questions), questions, strict=True)
    ]
    text = "".join(json.dumps(each, ensure_ascii=False) + "\n" for each in lines)
    path = predictions_folder(output) / f"max_crops-{max_crops}.jsonl"
    write_file(path, lambda part: part.write_text(text, "utf-8"))
    return row
