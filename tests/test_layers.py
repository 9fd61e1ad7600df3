"""Who may import whom? The table of the design, and proof that every file keeps to it."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

DATA_TYPES = (
    "diagnose.model",
    "diagnose.ranks",
    "diagnose.sizes",
    "diagnose.findings",
    "diagnose.codec",
    "diagnose.stats",
)
SHARED = (*DATA_TYPES, "diagnose.__version__")

# Files (the first pattern that fits decides) -> all that they may import beside the standard
# library. Files that no pattern fits may import anything: __main__ and the torchrun entries in
# diagnose/, and conftest.py, which see both halves.
ONLY: dict[str, tuple[str, ...]] = {
    "diagnose/model.py": DATA_TYPES,
    "diagnose/ranks.py": DATA_TYPES,
    "diagnose/sizes.py": DATA_TYPES,
    "diagnose/findings.py": DATA_TYPES,
    "diagnose/codec.py": DATA_TYPES,
    "diagnose/stats.py": DATA_TYPES,
    "diagnose/measure/**": (*SHARED, "diagnose.measure", "bench", "torch", "pynvml"),
    "diagnose/tell/**": (*SHARED, "diagnose.tell", "pandas", "matplotlib", "numpy"),
}

# Files -> what they must not import, whatever else they do.
NEVER: dict[str, tuple[str, ...]] = {
    "bench/**": ("diagnose",),
}

# Module or attribute of torch -> (where the rule holds, the one file that may touch it).
ONE_PLACE: dict[str, tuple[str, str]] = {
    "pynvml": ("**", "diagnose/measure/nvml.py"),
    "torch.cuda": ("diagnose/**", "diagnose/measure/cuda.py"),
}

PRODUCT = ("bench/**/*.py", "diagnose/**/*.py", "conftest.py")

# Longer than this and a file answers more than one question.
MOST_LINES = 400
MEASURED_FOR_LENGTH = (*PRODUCT, "tests/**/*.py", "tests/**/*.c", "tests/**/*.cpp", "tests/**/*.h")

# What makes a command slow to answer --help, or fail on a machine that only renders reports.
HEAVY = ("torch", "pandas", "matplotlib", "transformers")


def find_forbidden_imports(root: Path) -> list[str]:
    """One sentence for each import that the tables forbid."""
    found = []
    for path in find_files(root, PRODUCT):
        file = path.relative_to(root).as_posix()
        tree = ast.parse(path.read_text(encoding="utf-8"), filename=file)
        only = next((names for where, names in ONLY.items() if fits(file, where)), None)
        never = [name for where, names in NEVER.items() if fits(file, where) for name in names]
        for line, module in find_imports(tree, package_of(file)):
            outside = not is_in(module, sys.stdlib_module_names)
            if (only is not None and outside and not is_in(module, only)) or is_in(module, never):
                found.append(f"{file}:{line} may not import {module}")
        uses = [*find_imports(tree, package_of(file)), *find_attributes(tree)]
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
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in (
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
        if isinstance(node, ast.Attribute):
            dotted = ast.unparse(node)
            if re.fullmatch(r"[\w.]+", dotted):
                yield node.lineno, dotted


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


def test_every_file_keeps_to_the_import_table() -> None:
    assert find_forbidden_imports(ROOT) == []


def test_no_file_is_too_long() -> None:
    assert find_long_files(ROOT) == []


def test_no_module_shadows_the_standard_library() -> None:
    assert find_shadowing_modules(ROOT) == []


@pytest.mark.parametrize("verb", [(), ("run",), ("report",), ("check",)])
def test_help_answers_without_heavy_imports(verb: tuple[str, ...]) -> None:
    child = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "diagnose", *verb, "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    # import time:   self [us] | cumulative | imported package
    imported = re.findall(r"^import time:.*\| +(\S+)$", child.stderr, flags=re.MULTILINE)
    assert "argparse" in imported
    assert [module for module in imported if is_in(module, HEAVY)] == []


@pytest.mark.parametrize(
    ("file", "code", "complaint"),
    [
        ("bench/a.py", "import diagnose.model", "may not import diagnose.model"),
        ("bench/deep/a.py", "from diagnose import stats", "may not import diagnose.stats"),
        ("diagnose/model.py", "import numpy as np", "may not import numpy"),
        ("diagnose/stats.py", "from . import measure", "may not import diagnose.measure"),
        ("diagnose/measure/a.py", "import pandas", "may not import pandas"),
        ("diagnose/measure/a.py", "def f():\n    import diagnose.tell", "a.py:2 may not import"),
        ("diagnose/measure/stages/a.py", "from ...tell import x", "import diagnose.tell.x"),
        ("diagnose/measure/a.py", "import_module('diagnose.tell')", "import diagnose.tell"),
        (
            "diagnose/tell/a.py",
            "if TYPE_CHECKING:\n    import torch",
            "a.py:2 may not import torch",
        ),
        ("diagnose/tell/a.py", "from torch.nn import Linear", "import torch.nn.Linear"),
        ("diagnose/tell/a.py", "import bench.workload", "may not import bench.workload"),
        ("diagnose/tell/a.py", "from diagnose.measure import clock", "diagnose.measure.clock"),
        ("diagnose/measure/a.py", "import pynvml", "uses pynvml, which only"),
        ("bench/a.py", "import pynvml", "uses pynvml, which only"),
        ("diagnose/measure/a.py", "x = torch.cuda.Event()", "uses torch.cuda, which only"),
        ("diagnose/ddp.py", "from torch import cuda", "uses torch.cuda, which only"),
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
    write(tmp_path / "diagnose/codec.py", "import json\nfrom diagnose.model import Report")
    write(tmp_path / "diagnose/measure/a.py", "import os.path\nimport torch\nimport bench.bert")
    write(tmp_path / "diagnose/measure/cuda.py", "import torch\nx = torch.cuda.Event")
    write(tmp_path / "diagnose/measure/nvml.py", "import pynvml")
    write(tmp_path / "diagnose/tell/a.py", "import pandas\nfrom . import rules")
    write(tmp_path / "diagnose/__main__.py", "import rich\nfrom diagnose import measure, tell")
    write(tmp_path / "conftest.py", "import torch, pandas")
    assert find_forbidden_imports(tmp_path) == []


def test_long_file_and_shadowing_module_are_reported(tmp_path: Path) -> None:
    write(tmp_path / "diagnose/types.py", "x = 1\n" * (MOST_LINES + 1))
    write(tmp_path / "diagnose/model.py", "x = 1\n" * MOST_LINES)
    assert find_long_files(tmp_path) == ["diagnose/types.py has 401 lines, 400 at most"]
    assert find_shadowing_modules(tmp_path) == ["types"]


def write(path: Path, code: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(code, encoding="utf-8")
