"""Does the user's own workload file load, and does a bad one say what is wrong with it?"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

from diagnose.measure.jobs import load
from diagnose.workload import WorkloadError

EXAMPLE = Path(__file__).parents[2] / "bench" / "examples" / "my_job.py"
HEAD = "from diagnose.workload import Network, Size, Workload\n"
ONLY = "WORKLOAD = Workload({}, {{'only': Size(1)}}, Network(None, None), None)\n"


@pytest.fixture(autouse=True)
def _same_imports_afterwards(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    modules = set(sys.modules)
    yield
    for name in set(sys.modules) - modules:
        if name.partition("_")[0] in ("my", "job", "workload", "neighbour"):
            del sys.modules[name]


def write(folder: Path, content: str, name: str = "job.py") -> str:
    path = folder / name
    path.write_text(content, "utf-8")
    return str(path)


def test_the_example_learns_its_stripes_from_real_rows_shaped_like_synthetic_ones() -> None:
    torch.manual_seed(0)
    job = load(str(EXAMPLE))
    assert job.size(None, "cpu")[0] == job.size(None, "cuda")[0] == "small"
    size = job.sizes["tiny"]
    model = job.model.build(size)
    batch = next(iter(DataLoader(job.datasets["dataset"](size, None), size.batch_size)))
    synthetic = job.synthetic_batch(size, torch.device("cpu"))
    for real, made in zip(batch, synthetic, strict=True):
        assert (real.shape, real.dtype) == (made.shape, made.dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = job.model.loss(model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    assert all(each.grad is not None for each in model.parameters())
    assert losses[-1] < losses[0] / 2


def test_rows_can_be_sent_to_loader_processes_that_are_not_forked() -> None:
    job = load(str(EXAMPLE))
    rows = job.datasets["dataset"](job.sizes["tiny"], None)
    assert type(rows).__module__ == "my_job"
    assert len(pickle.loads(pickle.dumps(rows))) == 32


def test_a_file_can_import_its_neighbours(tmp_path: Path) -> None:
    write(tmp_path, HEAD + "NAME = 'mine'\n", "neighbour_name.py")
    content = HEAD + "from neighbour_name import NAME\n" + ONLY.format("NAME")
    assert load(write(tmp_path, content, "job_with_neighbour.py")).name == "mine"


def test_a_file_named_like_a_known_module_does_not_replace_it(tmp_path: Path) -> None:
    path = write(tmp_path, HEAD + ONLY.format("'mine'"), "json.py")
    import json

    assert load(path).name == "mine"
    assert sys.modules["json"] is json


def test_two_files_of_the_same_name_are_two_workloads(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        assert load(write(tmp_path / name, HEAD + ONLY.format(repr(name)))).name == name


IMPORT = "workload file {path} cannot be imported: "
NONE = (
    "workload file {path} defines no WORKLOAD = Workload(...), as docs/own-job.md shows; "
    "a plain training script needs none: diagnose script {path}"
)
BAD = {
    "error while importing": (
        "import no_such_module_anywhere\n",
        IMPORT + "ModuleNotFoundError: No module named 'no_such_module_anywhere'",
    ),
    "syntax": ("def\n", IMPORT + "SyntaxError: invalid syntax (job.py, line 1)"),
    "exit": ("import sys\nsys.exit(2)\n", IMPORT + "SystemExit: 2"),
    "no WORKLOAD": (HEAD, NONE),
    "WORKLOAD of another type": ("WORKLOAD = {'name': 'mine'}\n", NONE),
    "no sizes": (
        HEAD + "WORKLOAD = Workload('mine', {}, Network(None, None), None)\n",
        "workload mine in {path} has no sizes",
    ),
    "a part is missing": (
        HEAD + "WORKLOAD = Workload(name='mine', sizes={}, model=Network(None, None))\n",
        IMPORT + "TypeError: Workload.__init__() missing "
        "1 required positional argument: 'synthetic_batch'",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_is_refused_in_one_sentence(case: str, tmp_path: Path) -> None:
    content, message = BAD[case]
    path = write(tmp_path, content)
    with pytest.raises(WorkloadError) as caught:
        load(path)
    # SyntaxError names the whole path on some versions of Python and the file on others.
    assert str(caught.value).replace(f"({path},", "(job.py,") == message.format(path=path)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("brt", r"^no workload 'brt'; use bert.* or the path of a \.py"),
        ("job.yaml", r"^no workload 'job\.yaml'; use bert"),
        ("nowhere/job.py", r"^workload file nowhere/job\.py does not exist$"),
    ],
)
def test_what_is_not_there_is_named(name: str, sentence: str) -> None:
    with pytest.raises(WorkloadError, match=sentence):
        load(name)


def test_an_unknown_size_lists_the_known_ones() -> None:
    with pytest.raises(WorkloadError) as caught:
        load(str(EXAMPLE)).size("huge", "cpu")
    assert str(caught.value) == "workload stripes has no size 'huge'; it has small, tiny"
