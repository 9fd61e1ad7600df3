"""Is every operator of a step put down to the line that caused it? Counted by hand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from diagnose.measure.lines.launches import map_launches
from diagnose.measure.lines.operators import observe
from diagnose.measure.lines.source import LONGEST_CODE, Place, SourceLines, read_code
from diagnose.measure.machine.device import Device
from diagnose.records import codec
from diagnose.records.experiments import LaunchLine, LaunchMap
from tests.support.jobs import looping
from tests.support.jobs.looping import ROWS, WIDTH

JOBS = Path(looping.__file__).parent
FLOAT = 4  # bytes


def watch(step: Callable[[], object], roots: tuple[Path, ...] = (JOBS,)) -> LaunchMap:
    return map_launches(step, Device("cpu"), roots=roots, form="original", settings={"batch": 4})


def on_cpu(job: Callable[[str], Tensor]) -> LaunchMap:
    return watch(lambda: job("cpu"))


def find(found: LaunchMap, marker: str) -> LaunchLine:
    """The row of the line that ends in `# marker`."""
    (line,) = (line for line in found.lines if line.code.endswith(f"# {marker}"))
    return line


def test_the_loop_line_has_its_launches_of_both_passes() -> None:
    line = find(on_cpu(looping.assign_rows), "loop")
    assert (line.file, line.function) == ("looping.py", "assign_rows")
    assert line.code == "target[row] = source * 2  # loop"
    assert line.trips == ROWS
    assert line.forward == 2 * ROWS  # the product and the assignment
    # Of each assignment: the whole gradient copied, its row cloned, zeros made and written to
    # the row; of each product: one product; and all but one are added to the earlier ones.
    assert line.backward == (4 + 1) * ROWS + (ROWS - 1)
    assert line.operators == {"copy_": 12, "mul": 8, "clone": 4, "zeros_like": 4, "add": 3}


def test_neighbours_of_the_loop_keep_their_own_launches() -> None:
    found = on_cpu(looping.assign_rows)
    clone = find(found, "clone")
    # Backward: the sum over the expanded rows, and its addition to the gradient of the loop.
    assert (clone.forward, clone.backward, clone.trips) == (1, 2, 1)
    total = find(found, "sum")
    assert (total.forward, total.backward) == (1, 0)  # its backward only expands
    assert find(found, "backward").operators == {"ones_like": 1}


@pytest.mark.parametrize(
    "job",
    [
        looping.assign_rows,
        looping.read_on_host,
        looping.allocate,
        looping.change_in_place,
        looping.multiply,
        looping.run_in_backward,
    ],
)
def test_nothing_is_lost_or_counted_twice(job: Callable[[str], Tensor]) -> None:
    found = on_cpu(job)
    assert found.unattributed == 0
    assert found.launches == sum(line.forward + line.backward for line in found.lines)
    counts = [line.forward + line.backward for line in found.lines]
    assert counts == sorted(counts, reverse=True)


@pytest.mark.parametrize(
    ("marker", "launches", "operators"),
    [
        ("item", 3, ("_local_scalar_dense",)),
        ("nonzero", 1, ("nonzero",)),
        ("mask", 2, ("index",)),
        ("tolist", 0, ("tolist",)),
        ("cpu", 0, ("cpu",)),
    ],
)
def test_lines_that_would_wait_for_an_accelerator(
    marker: str, launches: int, operators: tuple[str, ...]
) -> None:
    line = find(on_cpu(looping.read_on_host), marker)
    assert (line.forward, line.sync_operators) == (launches, operators)
    assert line.syncs == (3 if marker == "item" else 1) == line.trips


def test_filling_by_mask_with_a_number_does_not_wait() -> None:
    line = find(on_cpu(looping.read_on_host), "fill")
    assert (line.forward, line.syncs, line.sync_operators) == (2, 0, ())


def test_allocated_bytes_are_exact() -> None:
    found = on_cpu(looping.allocate)
    big, small = find(found, "big"), find(found, "small")
    assert big.allocated_bytes == big.largest_bytes == 100 * 1000 * FLOAT
    assert small.allocated_bytes == small.largest_bytes == 10 * 10 * 8
    loop = find(on_cpu(looping.assign_rows), "loop")
    assert loop.largest_bytes == ROWS * WIDTH * FLOAT  # one copy of the whole gradient


def test_views_are_no_launches() -> None:
    assert not any(line.code.endswith("# views") for line in on_cpu(looping.allocate).lines)


def test_library_frames_fold_into_the_calling_line() -> None:
    found = watch(looping.call_twice("cpu"))
    linear = find(found, "linear")
    assert (linear.function, linear.trips, linear.forward) == ("forward", 2, 2)
    # Gradients of the weight twice, of the input once, of the bias twice; and the second
    # gradients of weight and bias are added to the first.
    assert linear.backward == 2 + 1 + 2 + 2
    relu = find(found, "relu")
    assert (relu.forward, relu.backward, relu.trips) == (2, 2, 2)
    assert {Path(line.file).name for line in found.lines} == {"looping.py"}


def test_the_optimizer_belongs_to_the_line_that_calls_it() -> None:
    line = find(watch(looping.call_twice("cpu")), "update")
    assert line.operators == {"add_": 2}
    assert line.trips == 1


def test_the_optimizer_called_by_the_suite_has_a_row_without_a_line() -> None:
    weight = torch.ones(3, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1, foreach=False)

    def step() -> None:
        looping.exponential(weight).sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    found = watch(step)
    (row,) = (line for line in found.lines if not line.file)
    assert (row.line, row.function, row.code) == (0, "optimizer", "")
    assert (row.forward, row.trips) == (1, 1)
    # What this file asked for is not the job's: the sum, the first gradient, and the addition
    # of the new gradient to that of the earlier step is the job's again.
    assert found.unattributed == 2
    recomputed = find(found, "recomputed")
    assert recomputed.operators == {"exp": 1, "mul": 1, "add_": 1}


def test_step_counters_of_the_optimizer_are_no_synchronisation() -> None:
    weight = torch.ones(3, requires_grad=True)
    weight.grad = torch.ones(3)
    optimizer = torch.optim.AdamW([weight], foreach=False)
    (row,) = watch(optimizer.step).lines
    assert row.operators["_local_scalar_dense"] == 1
    assert row.syncs == 0


def test_torch_may_lie_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "torch").symlink_to(Path(torch.__file__).parent)
    assert SourceLines(())._is_update(str(tmp_path / "torch" / "optim" / "sgd.py"))


def test_in_place_and_frozen_operators() -> None:
    found = on_cpu(looping.change_in_place)
    in_place = find(found, "in place")
    assert (in_place.forward, in_place.backward) == (2, 1)  # adding has nothing to do backward
    assert in_place.allocated_bytes == WIDTH * FLOAT  # by its backward
    frozen = find(found, "frozen")
    assert (frozen.forward, frozen.backward) == (1, 0)
    assert find(found, "multiply").backward == 1


def test_a_line_that_uses_an_operator_twice_runs_once() -> None:
    line = find(on_cpu(looping.change_in_place), "twice")
    assert line.operators == {"add": 2, "sum": 1}
    assert line.trips == 1


def test_flops_of_both_passes() -> None:
    line = find(on_cpu(looping.multiply), "matmul")
    assert (line.forward, line.backward) == (1, 2)
    assert line.flops == 3 * (2 * 4 * 5 * 6)
    assert line.allocated_bytes == (4 * 6 + 4 * 5 + 5 * 6) * FLOAT


def test_code_of_the_user_that_runs_in_backward_keeps_its_line() -> None:
    found = on_cpu(looping.run_in_backward)
    own = find(found, "own backward")
    assert (own.function, own.forward, own.backward, own.trips) == ("backward", 0, 1, 1)
    forward = find(found, "own forward")
    assert (forward.forward, forward.backward) == (1, 0)
    recomputed = find(found, "recomputed")
    assert (recomputed.forward, recomputed.backward) == (1, 2)  # computed again, then derived


def test_work_that_stays_on_the_host_is_no_launch_of_an_accelerator() -> None:
    operator, args = torch.ops.aten.add.Tensor, (torch.ones(3), torch.ones(3))
    on_host = observe(operator, args, {}, operator(*args), "cuda")
    assert (on_host.launches, on_host.new_bytes) == (False, ())
    assert observe(operator, args, {}, operator(*args), "cpu").launches
    scalar = torch.ops.aten._local_scalar_dense.default
    assert not observe(scalar, (torch.ones(()),), {}, 1.0, "cuda").synchronizes


def test_self_time_is_recorded_and_the_map_survives_its_file() -> None:
    found = on_cpu(looping.assign_rows)
    assert all(line.seconds.value is not None for line in found.lines)
    assert (found.form, found.settings) == ("original", {"batch": 4})
    assert codec.from_dict(LaunchMap, json.loads(codec.dumps(found))) == found


def test_without_a_root_nothing_is_attributed(tmp_path: Path) -> None:
    found = watch(lambda: looping.assign_rows("cpu"), roots=(tmp_path,))
    assert found.lines == ()
    assert found.unattributed == found.launches == on_cpu(looping.assign_rows).launches


def test_a_failing_step_leaves_nothing_switched_on() -> None:
    calls = []

    def step() -> None:
        calls.append(1)
        if len(calls) == 2:
            looping.fail("cpu")

    earlier = sys.getprofile()
    with pytest.raises(KeyError, match="no such column"):
        watch(step)
    assert sys.getprofile() is earlier
    assert torch._C._len_torch_dispatch_stack() == 0
    assert torch._C._len_torch_function_stack() == 0


def test_files_are_named_from_their_root(tmp_path: Path) -> None:
    script = write(tmp_path / "job" / "train.py")
    package = write(tmp_path / "pack" / "deep" / "model.py")
    write(tmp_path / "pack" / "__init__.py")
    installed = write(tmp_path / "job" / ".venv" / "lib" / "site-packages" / "library.py")
    lines = SourceLines([tmp_path / "job", tmp_path / "pack"])
    assert lines.name(str(script)) == "train.py"
    assert lines.name(str(package)) == "pack/deep/model.py"
    assert lines.name(str(installed)) is None
    assert lines.name("<string>") is None


def test_torch_and_the_suite_are_never_the_users() -> None:
    lines = SourceLines([Path("/")])
    assert lines.name(torch.nn.modules.linear.__file__) is None
    assert lines.name(map_launches.__code__.co_filename) is None
    assert lines.name(json.__file__) is None
    assert lines.name(looping.__file__) is not None


def test_long_code_is_cut(tmp_path: Path) -> None:
    script = tmp_path / "long.py"
    script.write_text(f"  {'x' * 200}\nshort\n", encoding="utf-8")
    code = read_code(Place(str(script), 1, "f"))
    assert code == "x" * (LONGEST_CODE - 1) + "…"
    assert read_code(Place(str(script), 2, "f")) == "short"


# One process runs both jobs: importing torch is most of the time.
ON_FAKE_GPU = """
import json
from pathlib import Path
from diagnose.records import codec
from diagnose.measure.machine.device import Device
from diagnose.measure.lines.launches import map_launches
from tests.support.jobs import looping
maps = {
    job.__name__: map_launches(
        lambda: job("fakegpu"), Device("fakegpu"),
        roots=[Path(looping.__file__).parent], form="original", settings={},
    )
    for job in (looping.read_on_host, looping.assign_rows)
}
print(json.dumps({name: codec.to_dict(found) for name, found in maps.items()}))
"""


@pytest.fixture(scope="module")
def fake_gpu_maps(fakegpu_env: dict[str, str]) -> dict[str, LaunchMap]:
    child = subprocess.run(
        [sys.executable, "-c", ON_FAKE_GPU],
        cwd=Path(__file__).parents[2],
        env=os.environ | fakegpu_env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    answers = json.loads(child.stdout)
    return {name: codec.from_dict(LaunchMap, found) for name, found in answers.items()}


def test_a_copy_to_the_host_is_a_synchronisation_on_an_accelerator(
    fake_gpu_maps: dict[str, LaunchMap],
) -> None:
    found = fake_gpu_maps["read_on_host"]
    copy = find(found, "cpu")
    assert (copy.forward, copy.syncs, copy.sync_operators) == (1, 1, ("_to_copy",))
    assert copy.allocated_bytes == 0  # the host's memory is not the device's
    assert find(found, "tolist").sync_operators == ("_to_copy",)
    assert find(found, "item").syncs == 3
    assert find(found, "arange").syncs == 0


def test_the_backward_thread_of_an_accelerator_is_watched_too(
    fake_gpu_maps: dict[str, LaunchMap],
) -> None:
    found, expected = fake_gpu_maps["assign_rows"], on_cpu(looping.assign_rows)
    assert find(found, "loop").operators == find(expected, "loop").operators
    assert find(found, "loop").trips == ROWS
    assert found.unattributed == 0


def write(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path
