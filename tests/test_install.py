"""Does a stranger get a working tool? The wheel, installed beside somebody's own torch."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.cli import ROOT

pytestmark = pytest.mark.child

# A folder whose modules are called like ours, or like our rooms.
OWN_MODULES = ("bench", "records", "stats", "types_", "measure", "render")
TRAIN = f"""
import {", ".join(OWN_MODULES)}, tests.thing
assert all(each.MINE for each in ({", ".join(OWN_MODULES)}, tests.thing))
import torch
torch.manual_seed(0)
model = torch.nn.Linear(64, 10)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def make_batch():
    return torch.tensor([[float(i * j % 7) for j in range(64)] for i in range(256)])

for step in range(10_000):
    model(make_batch()).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@dataclass(frozen=True)
class Installed:
    """An environment that has torch, what we depend on, and the wheel."""

    bin: Path
    site: Path

    def run(
        self, *words: object, cwd: Path, seconds: float = 240, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        clean = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
        return subprocess.run(
            [str(self.bin / str(words[0])), *map(str, words[1:])],
            cwd=cwd,
            env={**clean, "PATH": f"{self.bin}:{os.environ['PATH']}", **variables},
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    # Only what a build reads; a build in the tree itself would leave files there.
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(
        ROOT / "diagnose", source / "diagnose", ignore=shutil.ignore_patterns("__pycache__")
    )
    words = ["-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", folder]
    subprocess.run([sys.executable, *map(str, words), str(source)], check=True, timeout=120)
    return next(folder.glob("torch_diagnose-*.whl"))


def make_environment(folder: Path, *what: str) -> Installed:
    venv.create(folder, with_pip=False, symlinks=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = folder / "lib" / version / "site-packages"
    # torch and the other dependencies are those of this environment: they take minutes to install.
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    subprocess.run(
        [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install",
         "--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--ignore-installed", *what],
        check=True,
        timeout=120,
    )  # fmt: skip
    return Installed(folder / "bin", site)


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return make_environment(tmp_path_factory.mktemp("environment"), str(wheel))


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a history of its own: pip asks a shallow one for every blob alone, again and again."""
    folder = tmp_path_factory.mktemp("git") / "clone"
    script = (
        f'git clone -q --depth 1 "file://{ROOT}" "{folder}" && cd "{folder}" && rm -rf .git && '
        "git init -q && git add -A && git -c user.name=a -c user.email=a@b.org commit -q -m all"
    )
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=120)
    if done.returncode:
        pytest.skip(f"no repository can be cloned: {done.stderr.strip()}")
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a stranger works: their script, and modules of names that we have too."""
    for name in OWN_MODULES:
        (tmp_path / f"{name}.py").write_text("MINE = True\n")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "thing.py").write_text("MINE = True\n")
    (tmp_path / "train.py").write_text(TRAIN)
    return tmp_path


def test_the_wheel_brings_one_name_and_little_else(wheel: Path) -> None:
    names = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {name for name in names if not name.endswith(".dist-info")} == {"diagnose"}
    assert wheel.stat().st_size < 1_000_000
    metadata = zipfile.ZipFile(wheel).read(
        next(name for name in zipfile.ZipFile(wheel).namelist() if name.endswith("/METADATA"))
    )
    needed = re.findall(r"^Requires-Dist: ([\w-]+)(.*)$", metadata.decode(), re.MULTILINE)
    core = {name: rest for name, rest in needed if "extra ==" not in rest}
    assert set(core) == {"torch", "nvidia-ml-py", "psutil", "rich", "pandas", "matplotlib"}
    assert core["torch"] == "", "pip must never replace the user's torch"


@pytest.mark.parametrize(
    ("form", "sentence"),
    [("-e {}", "has no size 'none'"), ("git+file://{}", "come with the repository")],
)
def test_the_clone_can_be_installed_as_it_is(
    form: str, sentence: str, clone: Path, tmp_path: Path
) -> None:
    """Built-in workloads lie beside the package, where that is still in the clone."""
    made = make_environment(tmp_path / "environment", *form.format(clone).split())
    words = ("run", "--workload", "bert", "--size", "none", "--device", "cpu")
    done = made.run("diagnose", *words, cwd=tmp_path)
    assert done.returncode == 2
    assert sentence in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("python", "-m", "diagnose", "script", "--seconds", "4", "train.py"),
        (
            "python", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1",
            "--no-python", "diagnose", "script", "--seconds", "4", "train.py",
        ),
    ],
    ids=["module", "torchrun"],
)  # fmt: skip
def test_a_script_gets_its_own_modules(
    words: tuple[str, ...], installed: Installed, folder: Path
) -> None:
    done = installed.run(*words, cwd=folder)
    assert "diagnose: train.py · " in done.stderr, done.stderr
    assert "train.py:1" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_script_alone_is_enough_and_only_one_name_cannot_be_shared(
    installed: Installed, folder: Path
) -> None:
    (folder / "train.py").write_text(TRAIN.replace("10_000", "60"))
    (folder / "diagnose.py").write_text("raise SystemExit('the wrong one')\n")
    done = installed.run("diagnose", "train.py", cwd=folder)
    assert "60 steps" in done.stderr, done.stderr
    assert re.search(r"diagnose\.py; rename yours", done.stderr)
    assert "Traceback" not in done.stderr


def test_a_job_of_ones_own_is_measured_and_built_in_ones_are_said_to_be_elsewhere(
    installed: Installed, tmp_path: Path
) -> None:
    shutil.copy(ROOT / "bench" / "examples" / "my_job.py", tmp_path)
    smoke = ("--smoke", "--device", "cpu", "--stages", "inference")
    done = installed.run("diagnose", "run", "--workload", "my_job.py", *smoke, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "reports").glob("*/report.md"))) == 1
    done = installed.run("diagnose", "run", *smoke, cwd=tmp_path)
    assert done.returncode == 2
    assert "come with the repository" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("verb", "content", "complaint"),
    [
        ("script", "raise ImportError('libcudart.so.12: cannot open it')", "libcudart.so.12"),
        ("run", "__version__ = '2.5.1'", "torch 2.5.1 is too old"),
    ],
)
def test_a_torch_that_cannot_be_used_is_one_sentence(
    verb: str, content: str, complaint: str, installed: Installed, tmp_path: Path
) -> None:
    (tmp_path / "stub" / "torch").mkdir(parents=True)
    (tmp_path / "stub" / "torch" / "__init__.py").write_text(content + "\n")
    (tmp_path / "train.py").write_text("print('ran')\n")
    shutil.copy(ROOT / "bench" / "examples" / "my_job.py", tmp_path)
    words = {"script": ("script", "train.py"), "run": ("run", "--workload", "my_job.py")}[verb]
    done = installed.run("diagnose", *words, cwd=tmp_path, PYTHONPATH=str(tmp_path / "stub"))
    assert done.returncode in (2, 3)
    assert complaint in done.stderr
    assert "Traceback" not in done.stderr
    assert "ran" not in done.stdout


def test_without_torch_it_says_so(installed: Installed, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('ran')\n")
    code = (
        "import sys\n"
        "class Hide:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'torch': raise ModuleNotFoundError(name)\n"
        "import importlib.util; find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *more: None if name == 'torch' else find(name)\n"
        "sys.meta_path.insert(0, Hide())\n"
        "from diagnose.__main__ import main; sys.exit(main(['script', 'train.py']))"
    )
    done = installed.run("python", "-c", code, cwd=tmp_path)
    assert done.returncode in (2, 3)
    assert "torch is not installed" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_place_that_cannot_be_written_is_one_sentence(
    installed: Installed, tmp_path: Path
) -> None:
    shutil.copy(ROOT / "bench" / "examples" / "my_job.py", tmp_path)
    (tmp_path / "reports").write_text("a file where a folder should be\n")
    words = ("run", "--workload", "my_job.py", "--smoke", "--device", "cpu")
    done = installed.run("diagnose", *words, "--stages", "inference", cwd=tmp_path)
    assert done.returncode == 3
    assert "--reports" in done.stderr
    assert "Traceback" not in done.stderr
