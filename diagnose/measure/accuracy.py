"""What does the tool say of a script whose cause is known, and what does its repair really save?"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from diagnose.measure.jobs import ROOT, import_from_clone
from diagnose.measure.machine.describe import probe
from diagnose.measure.process import Hung
from diagnose.measure.ranks.growth import make_header
from diagnose.measure.session import Refused
from diagnose.measure.twins.cases import (
    UNLIMITED,
    Case,
    Length,
    find_lines,
    fixed_script,
    shortened,
)
from diagnose.measure.twins.timing import CouldNotTime, start_python, time_twins
from diagnose.measure.words import one_sentence, without_paths
from diagnose.records import codec
from diagnose.records.accuracy import Answer, CaseResult, PlantedCulprit, Said, Twins
from diagnose.records.diagnosis import Diagnosis, ScriptFinding
from diagnose.records.header import Header, Reading

# What the longest step of a planted script could take on a slow machine, its imports included.
STEP_SECONDS = 30.0
# A script that grows gets slower with every step, so its twin is timed over the steps that the
# tool saw; beyond so many blocks the answer would not change.
MOST_BLOCKS = 40
NOTHING_TO_REPAIR = "there is nothing to repair"


def describe_here(effort: str, *, simulated: bool = False) -> Header:
    """The planted scripts run on the CPU wherever they are, so that everybody can check them."""
    ready = {"identities": [], "machine": codec.to_dict(probe("cpu")), "is_fake": simulated}
    # As it would come from a measuring process: lists, not tuples.
    return make_header(json.loads(json.dumps(ready)), effort)


def find_simulated() -> tuple[Any, ...]:
    """Scripts whose truth holds on a simulated device, each with the device that it is for."""
    if importlib.util.find_spec("fakegpu") is None:
        raise Refused(
            "there is no simulated device: build it and put it on the path by "
            "PYTHONPATH=$(make -s fakegpu) TORCH_DEVICE_BACKEND_AUTOLOAD=1"
        )
    return tuple(import_from_clone("bench.planted_async.truth", "planted scripts").CASES)


def measure_simulated(
    timed: Any, tool: Sequence[str], seconds: float, timeout: float
) -> CaseResult:
    """The same as `measure_case`, where the clock of the truth is the device's own."""

    def time_sides(case: Case, said: Answer | None) -> Twins | str:
        measure = import_from_clone("bench.planted_async.run", "planted scripts").measure
        try:
            truth = measure(timed, os.environ)
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            return f"the twins were not timed: {one_sentence(str(error))}"
        slow, fixed = truth.slow.blocks, truth.fixed.blocks
        return Twins(slow, fixed, case.fixed_work)

    made = _measure(
        timed.case, tool, seconds, timeout, time_sides, Length(variables=timed.variables)
    )
    return replace(made, name=timed.name)


def measure_case(
    case: Case,
    tool: Sequence[str],
    seconds: float,
    timeout: float,
    blocks: int,
    script_seconds: float | None = None,
) -> CaseResult:
    """What the tool says of the script, and what its repair gives back.

    With `script_seconds` the script ends by itself after about so long.
    """
    length = UNLIMITED
    if script_seconds is not None:
        try:
            ((step,),) = _time_scripts(case, [case.slow], blocks=1)
        except CouldNotTime as error:
            why = f"its steps could not be timed: {error}"
            return CaseResult(case.name, _culprits(case), None, why, None, why, unseen=case.unseen)
        length = shortened(case, max(1, round(script_seconds / step)))
    return _measure(
        case, tool, seconds, timeout, lambda case, said: _time(case, said, blocks), length
    )


def _time_scripts(case: Case, scripts: Sequence[Path], blocks: int) -> list[list[float]]:
    return time_twins(
        scripts,
        ranks=case.ranks,
        blocks=blocks,
        block_steps=case.block_steps,
        settle_steps=case.settle_steps,
        step_seconds=STEP_SECONDS,
    )


def _measure(
    case: Case,
    tool: Sequence[str],
    seconds: float,
    timeout: float,
    time_sides: Callable[[Case, Answer | None], Twins | str],
    length: Length,
) -> CaseResult:
    begin = time.monotonic()
    said = ask_tool(case, tool, seconds, timeout, length)
    taken = time.monotonic() - begin
    given = said if isinstance(said, Answer) else None
    twins = time_sides(case, given)
    return CaseResult(
        name=case.name,
        culprits=_culprits(case),
        answer=given,
        answer_reason=said if isinstance(said, str) else "",
        twins=twins if isinstance(twins, Twins) else None,
        twins_reason=twins if isinstance(twins, str) else "",
        seconds=taken,
        unseen=case.unseen,
    )


def _culprits(case: Case) -> tuple[PlantedCulprit, ...]:
    return tuple(
        PlantedCulprit(each.cause, each.file, find_lines(case, each)) for each in case.culprits
    )


def find_complaints(result: CaseResult) -> list[str]:
    """What could not be measured of a case; a healthy script need not have a twin."""
    missing = [result.answer_reason] if result.answer is None else []
    if result.twins is None and result.twins_reason != NOTHING_TO_REPAIR:
        missing.append(result.twins_reason)
    return missing


def ask_tool(
    case: Case,
    tool: Sequence[str],
    seconds: float,
    timeout: float,
    length: Length = UNLIMITED,
) -> Answer | str:
    """The tool's answer, or one sentence that says why there is none."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "answer.json")
        words = [*tool, "--json", str(path), "--seconds", f"{seconds:g}", str(case.slow)]
        words += length.arguments
        with start_python(words, case.ranks, length.variables) as process:
            try:
                process.wait(timeout)
            except Hung:
                return f"no answer after {timeout:g} s"
            ending = process.describe_end()
        try:
            return _read_answer(path.read_text(encoding="utf-8"), case)
        except OSError:
            return f"the tool {ending} and wrote no answer"
        except ValueError as error:
            return f"the tool wrote an answer that cannot be read: {one_sentence(str(error))}"


def _read_answer(text: str, case: Case) -> Answer:
    """The part of the tool's JSON that can be right or wrong, in seconds."""
    diagnosis = codec.from_dict(Diagnosis, json.loads(text), "answer")
    step, overhead = diagnosis.step_ms, diagnosis.overhead.get("share")
    return Answer(
        sentence=without_paths(diagnosis.sentence),
        steps=diagnosis.steps,
        step_seconds=Reading(step.median / 1e3 if step else None, "" if step else "no plain step"),
        overhead_share=Reading(overhead, "" if overhead is not None else "the tool did not say"),
        findings=tuple(_read_finding(each, case) for each in diagnosis.findings),
    )


def _read_finding(finding: ScriptFinding, case: Case) -> Said:
    return Said(
        cause=finding.cause,
        file=_inside(finding.file, case),
        line=finding.line,
        gain_seconds=finding.gain_ms / 1e3,
        share=finding.share,
        verified=finding.verified,
    )


def _inside(file: str, case: Case) -> str:
    """The path from the script's own directory; of any other file only the name."""
    if not file:
        return ""  # the whole step
    path, home = (ROOT / file).resolve(), case.directory.resolve()
    return path.relative_to(home).as_posix() if path.is_relative_to(home) else path.name


def _time(case: Case, said: Answer | None, blocks: int) -> Twins | str:
    if not case.repair.exists():
        return NOTHING_TO_REPAIR
    if said is not None and "growth" in case.causes:
        covered = math.ceil(said.steps / (case.block_steps + case.settle_steps))
        blocks = max(blocks, min(MOST_BLOCKS, covered))
    try:
        with tempfile.TemporaryDirectory() as folder:
            scripts = [case.slow, fixed_script(case, Path(folder))]
            slow, fixed = _time_scripts(case, scripts, blocks)
    except CouldNotTime as error:
        return f"the twins were not timed: {error}"
    return Twins(tuple(slow), tuple(fixed), case.fixed_work)
