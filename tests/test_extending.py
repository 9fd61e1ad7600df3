"""How much must change to add something? One new file per room, and one line elsewhere.

One of each kind is added to a copy of the project, as docs/layout.md says, and then used.
"""

from __future__ import annotations

import difflib
import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.test_layers import find_forbidden_imports

pytestmark = pytest.mark.child

ROOT = Path(__file__).parents[1]
TIMEOUT_SECONDS = 120


@dataclass(frozen=True)
class Addition:
    """What a person writes: a new file, and a line at the end of a table in an old one."""

    file: str
    source: str
    table: tuple[str, str]  # the file, and how the table in it opens
    line: str


STAGE = Addition(
    "diagnose/measure/stages/double_batch.py",
    '''"""What does a batch of twice the size cost?"""

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
''',
    ("diagnose/measure/stages/__init__.py", "STAGES = ("),
    '    Stage("double_batch", "Twice the batch", "as many samples again"),',
)

WORKLOAD = Addition(
    "bench/linear.py",
    '''"""How fast is a single layer?"""

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
''',
    ("diagnose/measure/jobs.py", "BUILT_IN: Mapping[str, str] = {"),
    '    "linear": "bench.linear",',
)

OPTIMIZATION = Addition(
    "bench/optimizations/sums.py",
    '''"""Is one sum faster than many?"""

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
''',
    ("bench/optimizations/catalogue.py", "_ENTRIES = ("),
    '    "sums.ONE_SUM",',
)

VERB = Addition(
    "diagnose/commands/labels.py",
    '''"""What does `labels` do? It lists what was measured."""

from __future__ import annotations

import argparse

from diagnose.commands.arguments import add_reports_option
from diagnose.records.exit_codes import FINE

MANUAL = """example:
  python -m diagnose labels"""

add_options = add_reports_option


def run(arguments: argparse.Namespace) -> int:
    print(*sorted(each.name for each in arguments.reports.iterdir()), sep="\\n")
    return FINE
''',
    ("diagnose/commands/cli.py", "VERBS = ("),
    '    Verb("labels", "labels", "List the labels of all reports."),',
)

ADDITIONS = {
    "stage": STAGE,
    "workload": WORKLOAD,
    "optimization": OPTIMIZATION,
    "verb": VERB,
}


@dataclass(frozen=True)
class Copy:
    """The project with all additions, and what each of them has changed."""

    root: Path
    new_files: Mapping[str, list[str]]
    changed_lines: Mapping[str, list[str]]

    @property
    def reports(self) -> Path:
        return self.root / "reports"

    def diagnose(self, *words: object) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "diagnose", *map(str, words)],
            cwd=self.root,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    root = tmp_path_factory.mktemp("project")
    for room in ("diagnose", "bench"):
        # With what is compiled already: its times stay valid in a copy.
        shutil.copytree(ROOT / room, root / room, ignore=shutil.ignore_patterns("planted"))
    new_files, changed_lines = {}, {}
    for kind, addition in ADDITIONS.items():
        before = read_all(root)
        add(addition, root)
        after = read_all(root)
        new_files[kind] = sorted(after.keys() - before.keys())
        changed_lines[kind] = [
            line for file in before for line in compare(before[file], after[file])
        ]
    return Copy(root, new_files, changed_lines)


def read_all(root: Path) -> dict[str, str]:
    return {path.relative_to(root).as_posix(): path.read_text() for path in root.rglob("*.py")}


def add(addition: Addition, root: Path) -> None:
    (root / addition.file).write_text(addition.source)
    path, opening = root / addition.table[0], addition.table[1]
    lines = path.read_text().splitlines()
    first = lines.index(opening)
    closing = next(at for at in range(first, len(lines)) if lines[at] in (")", "]", "}"))
    lines.insert(closing, addition.line)
    path.write_text("\n".join(lines) + "\n")


def compare(before: str, after: str) -> list[str]:
    """Every line that was added or removed."""
    if before == after:
        return []
    lines = difflib.ndiff(before.splitlines(), after.splitlines())
    return [line for line in lines if line.startswith(("+ ", "- "))]


@pytest.mark.parametrize("kind", ADDITIONS)
def test_it_takes_one_new_file_and_one_line(copy: Copy, kind: str) -> None:
    addition = ADDITIONS[kind]
    assert copy.new_files[kind] == [addition.file]
    assert copy.changed_lines[kind] == [f"+ {addition.line}"]


def test_what_is_added_keeps_to_the_import_table(copy: Copy) -> None:
    assert find_forbidden_imports(copy.root) == []


def test_a_new_stage_of_a_new_workload_is_measured_and_reported(copy: Copy) -> None:
    words = ("--workload", "linear", "--stages", "double_batch", "--smoke", "--label", "stage")
    copy.diagnose("run", *words)
    report = (copy.reports / "stage" / "report.md").read_text()
    made = json.loads((copy.reports / "stage" / "run.json").read_text())
    assert made["workload"]["name"] == "linear"
    assert [(each["key"], each["status"]) for each in made["stages"]] == [("double_batch", "done")]
    # Its row among the stages, what it costs over its reference, its bar, its slowest steps.
    assert report.count("\n| Twice the batch |") == 2
    assert "![" in report
    assert "\n| `double_batch` |" in report


def test_a_new_optimization_is_tried(copy: Copy) -> None:
    words = ("--workload", "dgca", "--size", "tiny", "--only", "one_sum", "--smoke")
    copy.diagnose("optimize", *words, "--label", "optimization")
    report = (copy.reports / "optimization" / "report.md").read_text()
    assert "\n| `one_sum` | row by row → at once |" in report


def test_a_new_verb_is_listed_explained_and_run(copy: Copy) -> None:
    (copy.reports / "verb").mkdir(parents=True)
    assert "List the labels of all reports." in copy.diagnose("--help")
    assert "python -m diagnose labels" in copy.diagnose("labels", "--help")
    assert "verb" in copy.diagnose("labels").splitlines()
