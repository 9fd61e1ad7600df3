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
from diagnose.workload import Workload, WorkloadError

EXAMPLE = Path(__file__).parents[2] / "bench" / "examples" / "my_job.py"
HEAD = "from diagnose.workload import Network, Size, Workload\n"


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


def test_the_example_trains_on_its_own_data() -> None:
    job = load(str(EXAMPLE))
    assert job.size(None, "cpu")[0] == "small"
    assert job.size(None, "cuda")[0] == "small"
    size = job.sizes["tiny"]
    model = job.model.build(size)
    rows = job.datasets["dataset"](size, None)
    synthetic = job.synthetic_batch(size, torch.device("cpu"))
    for batch in (synthetic, next(iter(DataLoader(rows, size.batch_size)))):
        job.model.loss(model, batch).backward()  # type: ignore[no-untyped-call]
    assert all(each.grad is not None for each in model.parameters())
    real = next(iter(DataLoader(rows, size.batch_size)))
    assert [tensor.shape for tensor in real] == [tensor.shape for tensor in synthetic]
    assert [tensor.dtype for tensor in real] == [tensor.dtype for tensor in synthetic]


def test_the_example_learns_its_stripes() -> None:
    torch.manual_seed(0)
    job = load(str(EXAMPLE))
    size = job.sizes["tiny"]
    model = job.model.build(size)
    batch = next(iter(DataLoader(job.datasets["dataset"](size, None), 32)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = job.model.loss(model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2


def test_rows_can_be_sent_to_loader_processes_that_are_not_forked() -> None:
    job = load(str(EXAMPLE))
    rows = job.datasets["dataset"](job.sizes["tiny"], None)
    assert type(rows).__module__ == "my_job"
    assert len(pickle.loads(pickle.dumps(rows))) == 32


def test_a_file_can_import_its_neighbours(tmp_path: Path) -> None:
    write(tmp_path, HEAD + "SIZES = {'only': Size(7)}\n", "neighbour_sizes.py")
    path = write(
        tmp_path,
        HEAD
        + "from neighbour_sizes import SIZES\n"
        + "WORKLOAD = Workload('mine', SIZES, Network(None, None), None)\n",
        "job_with_neighbour.py",
    )
    assert load(path).sizes["only"].batch_size == 7


def test_a_file_named_like_a_known_module_does_not_replace_it(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        HEAD + "WORKLOAD = Workload('mine', {'only': Size(1)}, Network(None, None), None)\n",
        "json.py",
    )
    import json

    assert load(path).name == "mine"
    assert sys.modules["json"] is json


def test_two_files_of_the_same_name_are_two_workloads(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        path = write(
            tmp_path / name,
            HEAD + f"WORKLOAD = Workload('{name}', {{'only': Size(1)}}, Network(None, None), None)",
        )
        assert load(path).name == name


BAD = {
    "error while importing": (
        "import no_such_module_anywhere\n",
        "workload file {path} cannot be imported: "
        "ModuleNotFoundError: No module named 'no_such_module_anywhere'",
    ),
    "syntax": (
        "def\n",
        "workload file {path} cannot be imported: SyntaxError: invalid syntax (job.py, line 1)",
    ),
    "exit": (
        "import sys\nsys.exit(2)\n",
        "workload file {path} cannot be imported: SystemExit: 2",
    ),
    "no WORKLOAD": (
        HEAD,
        "workload file {path} defines no WORKLOAD = Workload(...); "
        "bench/examples/my_job.py shows one",
    ),
    "WORKLOAD of another type": (
        "WORKLOAD = {'name': 'mine'}\n",
        "workload file {path} defines no WORKLOAD = Workload(...); "
        "bench/examples/my_job.py shows one",
    ),
    "no sizes": (
        HEAD + "WORKLOAD = Workload('mine', {}, Network(None, None), None)\n",
        "workload mine in {path} has no sizes",
    ),
    "a part is missing": (
        HEAD + "WORKLOAD = Workload(name='mine', sizes={}, model=Network(None, None))\n",
        "workload file {path} cannot be imported: TypeError: Workload.__init__() missing "
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


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(
        WorkloadError, match=r"^no workload 'brt'; use bert.* or the path of a \.py"
    ):
        load("brt")
    with pytest.raises(WorkloadError, match=r"^no workload 'job\.yaml'; use bert"):
        load("job.yaml")


def test_a_missing_file_is_named() -> None:
    with pytest.raises(WorkloadError) as caught:
        load("nowhere/job.py")
    assert str(caught.value) == "workload file nowhere/job.py does not exist"


def test_an_unknown_size_lists_the_known_ones() -> None:
    example: Workload = load(str(EXAMPLE))
    with pytest.raises(WorkloadError) as caught:
        example.size("huge", "cpu")
    assert str(caught.value) == "workload stripes has no size 'huge'; it has small, tiny"
