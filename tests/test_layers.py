"""Who may import whom? The table of the design, and proof that every file keeps to it."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# Room -> all that its files may import beside the standard library; the first pattern that fits
# decides, and files that no pattern fits may import anything. One direction:
# commands -> measure -> records <- analyze <- render.
ONLY: dict[str, tuple[str, ...]] = {
    "diagnose/records/**": ("diagnose.records", "diagnose.__version__"),
    "diagnose/workload.py": ("torch",),  # annotations of the contract alone
    "diagnose/measure/**": (
        "diagnose.records",
        "diagnose.workload",
        "diagnose.measure",
        "diagnose.__version__",
        "torch",
        "pynvml",
        "psutil",
        "msgspec",
    ),
    "diagnose/analyze/**": ("diagnose.records", "diagnose.analyze", "diagnose.__version__"),
    "diagnose/render/**": (
        "diagnose.records",
        "diagnose.analyze",
        "diagnose.render",
        "diagnose.__version__",
        "pandas",
        "matplotlib",
        "numpy",
    ),
    "diagnose/commands/notebook.py": ("diagnose", "IPython"),  # only inside a notebook
    "diagnose/commands/**": ("diagnose", "rich"),
    # The doors that a user runs as files.
    "diagnose/ddp_bandwidth.py": ("diagnose.commands",),
    "diagnose/ddp_scaling.py": ("diagnose.commands",),
    "diagnose/evaluate.py": ("diagnose.commands",),
    "diagnose/profile_accuracy.py": ("diagnose.commands",),
    "diagnose/__main__.py": ("diagnose.commands",),
}

INTERVALS = (
    "diagnose.records.sequential",
    "diagnose.records.stats.hodges_lehmann",
    "diagnose.records.stats.log_ratio_interval",
    "diagnose.records.stats.paired_t",
)

# Files -> what they must not import, whatever else they do.
NEVER: dict[str, tuple[str, ...]] = {
    "bench/**": ("diagnose.analyze", "diagnose.render"),
    "diagnose/**": ("bench",),
    # Trials of a script whose number of blocks hung on an interval would need another interval.
    "diagnose/measure/script/change/**": INTERVALS,
    "diagnose/measure/script/plan.py": INTERVALS,
    "diagnose/measure/script/passes.py": INTERVALS,
}

# Module or attribute of torch -> (where the rule holds, the one file that may touch it).
ONE_PLACE: dict[str, tuple[str, str]] = {
    "pynvml": ("**", "diagnose/measure/gpu/nvml.py"),
    "torch.cuda": ("diagnose/**", "diagnose/measure/machine/cuda.py"),
}

PRODUCT = ("bench/**/*.py", "diagnose/**/*.py", "conftest.py")

# Longer than this and a file answers more than one question.
MOST_LINES = 400
MEASURED_FOR_LENGTH = (*PRODUCT, "tests/**/*.py", "tests/**/*.c", "tests/**/*.cpp", "tests/**/*.h")

# More than this and a folder is no room any more: nobody sees at a glance what it holds.
MOST_FILES = 20


def find_forbidden_imports(root: Path) -> list[str]:
    """One sentence for each import that the tables forbid."""
    found = []
    for path in find_files(root, PRODUCT):
        file = path.relative_to(root).as_posix()
        tree = ast.parse(path.read_text(encoding="utf-8"), filename=file)
        only = next((names for where, names in ONLY.items() if fits(file, where)), None)
        never = [name for where, names in NEVER.items() if fits(file, where) for name in names]
        imports = list(find_imports(tree, package_of(file)))
        for line, module in imports:
            outside = not is_in(module, sys.stdlib_module_names)
            if (only is not None and outside and not is_in(module, only)) or is_in(module, never):
                found.append(f"{file}:{line} may not import {module}")
        uses = [*imports, *find_attributes(tree)]
        for name, (where, place) in ONE_PLACE.items():
            lines = sorted({line for line, used in uses if is_in(used, (name,))})
            if lines and fits(file, where) and file != place:
                found.append(f"{file}:{lines[0]} uses {name}, which only {place} may")
    return found


def find_files(root: Path, patterns: tuple[str, ...]) -> list[Path]:
    return sorted({path for pattern in patterns for path in root.glob(pattern)})


def fits(file: str, pattern: str) -> bool:
    return file == pattern or (pattern.endswith("**") and file.startswith(pattern[:-2]))


def is_in(module: str, names: tuple[str, ...] | list[str] | frozenset[str]) -> bool:
    """Whether the module is one of the names or lies inside one of them."""
    parts = module.split(".")
    return any(".".join(parts[:count]) in names for count in range(1, len(parts) + 1))


def package_of(file: str) -> list[str]:
    return file.split("/")[:-1]


def find_imports(tree: ast.AST, package: list[str]) -> Iterator[tuple[int, str]]:
    """Every import anywhere in the file, as (line, absolute dotted name)."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            base += [node.module] if node.module else []
            # The name too: `from diagnose import tell` imports diagnose.tell.
            yield from ((node.lineno, ".".join([*base, alias.name])) for alias in node.names)
        elif isinstance(node, ast.Call) and name_of(node.func) in (
            "importlib.import_module",
            "import_module",
            "__import__",
        ):
            argument = node.args[0] if node.args else None
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                yield node.lineno, argument.value


def find_attributes(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every dotted expression such as torch.cuda.Event."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (dotted := name_of(node)):
            yield node.lineno, dotted


def name_of(node: ast.AST) -> str:
    """A name or names with dots between them; of anything else, nothing."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.insert(0, node.attr)
        node = node.value
    return ".".join([node.id, *names]) if isinstance(node, ast.Name) else ""


def find_long_files(root: Path) -> list[str]:
    found = []
    for path in find_files(root, MEASURED_FOR_LENGTH):
        count = len(path.read_text(encoding="utf-8").splitlines())
        if count > MOST_LINES:
            found.append(f"{path.relative_to(root)} has {count} lines, {MOST_LINES} at most")
    return found


def find_shadowing_modules(root: Path) -> list[str]:
    """Under torchrun diagnose/ itself is on sys.path, so these would replace the real ones."""
    names = {path.stem if path.is_file() else path.name for path in (root / "diagnose").iterdir()}
    return sorted(names & sys.stdlib_module_names)


def find_crowded_folders(root: Path) -> list[str]:
    found = []
    for top in ("diagnose", "bench", "tests"):
        folders = [root / top, *(path for path in (root / top).rglob("*") if path.is_dir())]
        for folder in folders:
            count = len(list(folder.glob("*.py")))
            if count > MOST_FILES:
                found.append(f"{folder.relative_to(root)} holds {count} files")
    return sorted(found)


def find_endless_waits(root: Path) -> list[str]:
    """Where a test waits for a process, however long that takes."""
    return [
        f"{path.relative_to(root)}:{node.lineno}"
        for path in find_files(root, ("tests/**/*.py",))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and re.match(r"subprocess\.(run|call|check_\w+)$|.*\.communicate$", ast.unparse(node.func))
        and "timeout" not in [each.arg for each in node.keywords]
    ]


def find_import_cycles(root: Path) -> list[str]:
    """Modules of diagnose/ that import each other in a circle, imports inside functions too."""
    files = {
        ".".join(path.relative_to(root).with_suffix("").parts): path
        for path in find_files(root, ("diagnose/**/*.py",))
    }
    edges = {}
    for name, path in files.items():
        package = package_of(path.relative_to(root).as_posix())
        used = find_imports(ast.parse(path.read_text(encoding="utf-8")), package)
        targets = {module if module in files else module.rpartition(".")[0] for _, module in used}
        edges[name] = (targets & files.keys()) - {name}
    # Whatever imports nothing that is left cannot be part of a circle.
    while free := {name for name, targets in edges.items() if not targets & edges.keys()}:
        edges = {name: targets for name, targets in edges.items() if name not in free}
    while free := {name for name in edges if not any(name in each for each in edges.values())}:
        edges = {name: targets for name, targets in edges.items() if name not in free}
    return sorted(edges)


def test_every_file_keeps_to_the_import_table() -> None:
    assert find_forbidden_imports(ROOT) == []


def test_nothing_imports_in_a_circle() -> None:
    assert find_import_cycles(ROOT) == []


def test_no_folder_is_crowded() -> None:
    assert find_crowded_folders(ROOT) == []


def test_no_file_is_too_long() -> None:
    assert find_long_files(ROOT) == []


def test_no_module_shadows_the_standard_library() -> None:
    assert find_shadowing_modules(ROOT) == []


def test_the_contract_of_a_job_needs_torch_for_annotations_alone() -> None:
    tree = ast.parse((ROOT / "diagnose" / "workload.py").read_text(encoding="utf-8"))
    (guard,) = [each for each in tree.body if ast.unparse(each).startswith("if TYPE_CHECKING:")]
    everywhere, guarded = (
        [found for found in find_imports(part, ["diagnose"]) if is_in(found[1], ("torch",))]
        for part in (tree, guard)
    )
    assert everywhere == guarded != []


def test_nothing_that_a_test_starts_may_run_for_ever(tmp_path: Path) -> None:
    assert find_endless_waits(ROOT) == []
    write(tmp_path / "tests/a.py", "run([])\nsubprocess.run([])\nit.communicate()\n")
    write(tmp_path / "tests/b.py", "subprocess.run([], timeout=1)\nit.communicate(timeout=1)\n")
    assert find_endless_waits(tmp_path) == ["tests/a.py:2", "tests/a.py:3"]


@pytest.mark.parametrize(
    ("file", "code", "complaint"),
    [
        ("bench/a.py", "import diagnose.render.page", "may not import diagnose.render.page"),
        ("bench/deep/a.py", "from diagnose import analyze", "may not import diagnose.analyze"),
        ("diagnose/records/a.py", "import numpy as np", "may not import numpy"),
        ("diagnose/records/a.py", "from .. import measure", "may not import diagnose.measure"),
        ("diagnose/measure/a.py", "import pandas", "may not import pandas"),
        ("diagnose/measure/a.py", "def f():\n    import diagnose.render", "a.py:2 may not import"),
        ("diagnose/measure/stages/a.py", "from ...analyze import x", "import diagnose.analyze.x"),
        ("diagnose/measure/a.py", "import_module('diagnose.render')", "import diagnose.render"),
        ("diagnose/measure/a.py", "from diagnose.commands import run", "diagnose.commands.run"),
        ("diagnose/measure/a.py", "import bench.bert", "may not import bench.bert"),
        ("diagnose/commands/a.py", "import bench.bert", "may not import bench.bert"),
        ("diagnose/commands/a.py", "import torch", "may not import torch"),
        (
            "diagnose/measure/script/change/a.py",
            "from diagnose.records.stats import log_ratio_interval",
            "may not import diagnose.records.stats.log_ratio_interval",
        ),
        (
            "diagnose/analyze/a.py",
            "if TYPE_CHECKING:\n    import torch",
            "a.py:2 may not import torch",
        ),
        ("diagnose/analyze/a.py", "from diagnose.render import table", "diagnose.render.table"),
        ("diagnose/analyze/a.py", "import pandas", "may not import pandas"),
        ("diagnose/render/a.py", "from torch.nn import Linear", "import torch.nn.Linear"),
        ("diagnose/render/a.py", "import diagnose.workload", "may not import diagnose.workload"),
        ("diagnose/render/a.py", "from diagnose.measure import clock", "diagnose.measure.clock"),
        ("diagnose/measure/a.py", "import pynvml", "uses pynvml, which only"),
        ("bench/a.py", "import pynvml", "uses pynvml, which only"),
        ("diagnose/measure/a.py", "x = torch.cuda.Event()", "uses torch.cuda, which only"),
    ],
)
def test_forbidden_import_is_reported(tmp_path: Path, file: str, code: str, complaint: str) -> None:
    write(tmp_path / file, code)
    found = find_forbidden_imports(tmp_path)
    assert len(found) == 1
    assert found[0].startswith(f"{file}:")
    assert complaint in found[0]


def test_permitted_imports_are_not_reported(tmp_path: Path) -> None:
    write(tmp_path / "bench/a.py", "import torch, transformers\nx = torch.cuda.is_available()")
    write(tmp_path / "bench/b.py", "from diagnose.workload import Workload")
    write(tmp_path / "diagnose/records/codec.py", "import json\nfrom diagnose.records.run import R")
    write(
        tmp_path / "diagnose/measure/a.py", "import os.path\nimport torch\nimport diagnose.records"
    )
    write(tmp_path / "diagnose/measure/machine/cuda.py", "import torch\nx = torch.cuda.Event")
    write(tmp_path / "diagnose/measure/gpu/nvml.py", "import pynvml")
    write(tmp_path / "diagnose/analyze/a.py", "from diagnose.records import run")
    write(tmp_path / "diagnose/render/a.py", "import pandas\nfrom diagnose.analyze import a")
    write(tmp_path / "diagnose/commands/a.py", "import rich\nfrom diagnose import measure, render")
    write(tmp_path / "conftest.py", "import torch, pandas")
    assert find_forbidden_imports(tmp_path) == []


def test_a_circle_and_a_crowd_are_reported(tmp_path: Path) -> None:
    write(tmp_path / "diagnose/a.py", "from diagnose import b")
    write(tmp_path / "diagnose/b.py", "def f():\n    from diagnose.c import x")
    write(tmp_path / "diagnose/c.py", "from diagnose.a import y")
    write(tmp_path / "diagnose/d.py", "from diagnose import a")
    assert find_import_cycles(tmp_path) == ["diagnose.a", "diagnose.b", "diagnose.c"]
    for number in range(MOST_FILES + 1):
        write(tmp_path / f"tests/x/{number}.py", "")
    assert find_crowded_folders(tmp_path) == ["tests/x holds 21 files"]


def test_long_file_and_shadowing_module_are_reported(tmp_path: Path) -> None:
    write(tmp_path / "diagnose/types.py", "x = 1\n" * (MOST_LINES + 1))
    write(tmp_path / "diagnose/model.py", "x = 1\n" * MOST_LINES)
    assert find_long_files(tmp_path) == ["diagnose/types.py has 401 lines, 400 at most"]
    assert find_shadowing_modules(tmp_path) == ["types"]


def write(path: Path, code: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(code, encoding="utf-8")
