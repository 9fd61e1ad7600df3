"""What would somebody add? One of each kind, with all that has to be written for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Addition:
    """What a person writes: new files, and a line at the end of a table in an old one."""

    files: Mapping[str, str]  # source by path
    table: tuple[str, str]  # the file, and how the table in it opens
    line: str


STAGE = Addition(
    {
        "diagnose/measure/stages/double_batch.py": '''\
"""What does a batch of twice the size cost?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from diagnose.measure.stages.inference import inference_variant
from diagnose.measure.stages.plan import Context, Plan


@contextmanager
def plan(context: Context) -> Iterator[Plan]:
    size = replace(context.size, batch_size=2 * context.size.batch_size)
    doubled = inference_variant(replace(context, size=size))
    yield Plan([doubled, replace(inference_variant(context), role="reference")])
'''
    },
    ("diagnose/measure/stages/__init__.py", "STAGES = ("),
    '    Stage("double_batch", "Twice the batch"),',
)

WORKLOAD = Addition(
    {
        "bench/linear.py": '''\
"""How fast is a single layer?"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from diagnose.workload import Network, Size, Workload

WIDTH = 8


def build(size: Size) -> nn.Module:
    return nn.Linear(WIDTH, WIDTH)


def loss(model: nn.Module, batch: Tensor) -> Tensor:
    result: Tensor = model(batch).square().mean()
    return result


def synthetic_batch(size: Size, device: torch.device) -> Tensor:
    return torch.ones(size.batch_size, WIDTH, device=device)


WORKLOAD = Workload(
    name="linear",
    sizes={"small": Size(2)},
    model=Network(build=build, loss=loss),
    synthetic_batch=synthetic_batch,
)
'''
    },
    ("diagnose/measure/jobs.py", "BUILT_IN: Mapping[str, str] = {"),
    '    "linear": "bench.linear",',
)

OPTIMIZATION = Addition(
    {
        "bench/optimizations/sums.py": '''\
"""Is one sum faster than many?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from diagnose.workload import Lab, Optimization, Side, Trial

ROWS = 64


def _side(text: str, add_up: Callable[[Tensor], Tensor]) -> Side:
    def outcome(lab: Lab) -> dict[str, Tensor]:
        return {"sum": add_up(torch.ones(ROWS, ROWS, device=lab.device))}

    @contextmanager
    def trial(lab: Lab) -> Iterator[Trial]:
        numbers = torch.ones(ROWS, ROWS, device=lab.device)
        yield Trial(lambda: add_up(numbers), samples_per_step=1)

    return Side(text, outcome, {"sum": trial})


ONE_SUM = Optimization(
    key="one_sum",
    title="One sum instead of one per row",
    before=_side("row by row", lambda rows: torch.stack([row.sum() for row in rows]).sum()),
    after=_side("at once", torch.sum),
)
'''
    },
    ("bench/optimizations/catalogue.py", "_ENTRIES = ("),
    '    "sums.ONE_SUM",',
)

VERB = Addition(
    {
        "diagnose/commands/slowest_stage.py": '''\
"""What does `slowest-stage` do? It names the stage that a run spent most time in."""

from __future__ import annotations

import argparse

from diagnose.analyze.slowest_stage import find_slowest
from diagnose.commands.shared.arguments import add_reports_option
from diagnose.commands.shared.keep import write_report
from diagnose.records.exit_codes import FINE
from diagnose.records.run import RunRecord
from diagnose.render import store

MANUAL = """example:
  diagnose slowest-stage LABEL"""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("label")
    add_reports_option(parser)


def run(arguments: argparse.Namespace) -> int:
    directory = arguments.reports / arguments.label
    record = find_slowest(store.load(directory / RunRecord.FILE_NAME, RunRecord))
    store.save(record, directory)
    write_report(directory)
    print(record.title)
    return FINE
''',
        "diagnose/records/slowest_stage.py": '''\
"""Which stage took longest?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from diagnose.records.header import Header


@dataclass(frozen=True)
class SlowestRecord:
    """One `slowest-stage`."""

    FILE_NAME: ClassVar[str] = "slowest_stage.json"

    header: Header
    title: str
    complete: bool = True
''',
        "diagnose/analyze/slowest_stage.py": '''\
"""In which stage did a run spend most time?"""

from __future__ import annotations

from diagnose.records.run import RunRecord
from diagnose.records.slowest_stage import SlowestRecord


def find_slowest(record: RunRecord) -> SlowestRecord:
    slowest = max(record.stages, key=lambda stage: stage.seconds)
    return SlowestRecord(record.header, slowest.title)
''',
        "diagnose/render/slowest_stage.py": '''\
"""How is the slowest stage shown?"""

from __future__ import annotations

from diagnose.records.slowest_stage import SlowestRecord
from diagnose.render.page import Page
from diagnose.render.part import Part

QUESTION = "Which stage took longest?"


def page(record: SlowestRecord) -> Page:
    return Page(record.header, record.header.label, QUESTION, f"It was {record.title}.", [])


PART = Part(SlowestRecord, QUESTION, page, lambda record: {})
''',
    },
    ("diagnose/records/verbs.py", "VERBS = ("),
    '    Verb("slowest-stage", "Name the stage that took longest.", True),',
)

CAUSE = Addition(
    {
        "diagnose/analyze/script/pause.py": '''\
"""Does a step pause now and then, for garbage collection or a busy disk?"""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from diagnose.analyze.script.claims import Claim
from diagnose.records.script import ScriptRecord
from diagnose.records.stats import Interval

ADVICE = "collect garbage between epochs: gc.freeze() after the first step"
# Times the median: no step of the same work takes so long by itself.
PAUSE = 5.0


def judge(record: ScriptRecord) -> Iterator[Claim]:
    usual = statistics.median(record.step_seconds)
    paused = [each for each in record.step_seconds if each > PAUSE * usual]
    if paused:
        gain = sum(each - usual for each in paused) / len(record.step_seconds)
        evidence = f"steps that paused: {len(paused)}"
        yield Claim("pause", None, Interval(gain, gain, gain), verified=False, evidence=evidence)
'''
    },
    ("diagnose/records/script.py", "Cause = Literal["),
    '    "pause",',
)

ADDITIONS = {
    "stage": STAGE,
    "workload": WORKLOAD,
    "optimization": OPTIMIZATION,
    "verb": VERB,
    "cause": CAUSE,
}
