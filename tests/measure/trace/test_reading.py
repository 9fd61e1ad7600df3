"""What is read from a file: whole, packed, cut, old, odd."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from diagnose.measure.session import CouldNotOpen, Refused
from diagnose.measure.trace.reading import read_traces
from diagnose.records.trace import RankTrace
from tests.support.traces import HOST, Event, collective_steps, kernel, loading_steps, write, x


def read(path: Path) -> RankTrace:
    return read_traces([path], "test").ranks[0]


@pytest.mark.parametrize("names", ["new", "old", "hip"])
def test_busy_idle_and_the_bound_of_the_loader(tmp_path: Path, names: str) -> None:
    rank = read(write(tmp_path / "t.json", loading_steps(names=names)))
    assert rank.device is not None
    assert rank.device.kernels == 4
    # Four kernels of 300 µs; the last ends 3.3 ms after the first began.
    assert rank.device.busy == pytest.approx(1.2e-3)
    assert rank.device.seconds == pytest.approx(3.3e-3)
    step = rank.steps[1]
    assert step.seconds == pytest.approx(1e-3)
    assert step.busy == pytest.approx(300e-6)
    assert step.idle is not None
    assert step.idle["loader"] == pytest.approx(600e-6)
    assert step.idle["launching"] == pytest.approx(40e-6)
    # Without the loader 400 µs of the host are left, which hide the kernel of 300 µs.
    bound = next(each for each in rank.bounds if each.cause == "input")
    assert bound.seconds == pytest.approx(600e-6, rel=1e-6)


def test_a_loader_behind_a_busy_device_gives_back_only_its_exposed_part(tmp_path: Path) -> None:
    events = loading_steps()
    for each in events:
        if each["cat"] == "kernel":
            each["dur"] = 900.0
    rank = read(write(tmp_path / "t.json", events))
    bound = next(each for each in rank.bounds if each.cause == "input")
    # The device needs 900 of each 1000 µs; three steps give back 100, the first its whole wait.
    assert rank.host["loader"] == pytest.approx(600e-6)
    assert bound.seconds < 0.5 * rank.host["loader"]


def test_lines_and_kernels_have_their_operator(tmp_path: Path) -> None:
    rank = read(write(tmp_path / "t.json", loading_steps()))
    group = rank.kernels[0]
    assert (group.operator, group.kernels) == ("aten::mm", 1)
    assert group.site is not None
    assert (group.site.file, group.site.line, group.site.function) == ("train.py", 12, "train")


def test_backward_kernels_belong_to_the_line_of_the_forward_operator(tmp_path: Path) -> None:
    seq = {"Sequence number": 5}
    events = [
        x("python_function", "train.py(3): model", 0, 50),
        x("cpu_op", "aten::mm", 10, 20, **seq),
        x("cpu_op", "autograd::engine::evaluate_function: MmBackward0", 60, 30, **seq),
        x("cuda_runtime", "cudaLaunchKernel", 70, 5, correlation=1),
        kernel("gemm", 80, 100, 1),
    ]
    group = read(write(tmp_path / "t.json", events)).kernels[0]
    assert (group.operator, group.seconds) == ("aten::mm", 0)
    assert group.backward_seconds == pytest.approx(100e-6)
    assert group.site is not None
    assert group.site.line == 3


def test_a_synchronizing_call_is_a_wait_that_the_replay_can_leave_out(tmp_path: Path) -> None:
    events = []
    for step in range(4):
        at = 1000.0 * step
        events += [
            x("user_annotation", f"ProfilerStep#{step}", at, 1000),
            x("cuda_runtime", "cudaLaunchKernel", at, 5, correlation=step + 1),
            kernel("gemm", at + 10, 490, step + 1),
            x("cuda_runtime", "cudaStreamSynchronize", at + 10, 495),
            x("cpu_op", "aten::relu", at + 510, 400),
        ]
    rank = read(write(tmp_path / "t.json", events))
    bounds = {each.cause: each.seconds for each in rank.bounds}
    # The device needs 490 of each 1000 µs, the host 500 beside the waiting.
    assert bounds["sync"] == pytest.approx(495e-6, rel=0.1)
    assert rank.host["sync"] == pytest.approx(495e-6)


def test_one_launch_of_a_graph_owns_all_its_kernels(tmp_path: Path) -> None:
    events = [
        x("user_annotation", "ProfilerStep#0", 0, 500),
        x("cuda_runtime", "cudaGraphLaunch", 0, 9, correlation=1),
        *(kernel("fused", 20 + 100 * at, 90, 1) for at in range(4)),
    ]
    device = read(write(tmp_path / "t.json", events)).device
    assert device is not None
    assert (device.kernels, device.graph_launches, device.unlaunched) == (4, 1, 0)


@pytest.mark.parametrize("packed", [False, True])
def test_a_cut_file_gives_what_is_whole(tmp_path: Path, packed: bool) -> None:
    whole = json.dumps({"traceEvents": loading_steps(40)}).encode()
    path = tmp_path / "t.json"
    path.write_bytes(gzip.compress(whole)[:-200] if packed else whole[: len(whole) // 2])
    rank = read(path)
    assert len(rank.steps) > 5
    assert any("is not whole" in note for note in rank.notes)


@pytest.mark.parametrize("kept", [0.9, 0.0])
def test_steps_whose_device_was_cut_off_are_left_out(tmp_path: Path, kept: float) -> None:
    """Profilers write the device last: what is left of it must not be taken for an idle device."""
    events = sorted(loading_steps(40), key=lambda each: each["cat"] == "kernel")
    host = [each for each in events if each["cat"] != "kernel"]
    text = json.dumps({"traceEvents": events})
    begin = len(json.dumps({"traceEvents": host}))
    path = tmp_path / "t.json"
    path.write_text(text[: int(begin + (len(text) - begin) * kept)])
    rank = read(path)
    if not kept:
        assert rank.device is None
    else:
        assert 20 < len(rank.steps) < 40
        assert {round(each.busy * 1e6) for each in rank.steps} == {300}
    assert any("is not whole" in note for note in rank.notes)


def test_nanoseconds_and_odd_events(tmp_path: Path) -> None:
    base = 1_700_000_000_000_000_000
    events = loading_steps()
    for each in events:
        each["ts"], each["dur"] = base + each["ts"] * 1000, each["dur"] * 1000
    odd: list[Event] = [
        {"ph": "X", "cat": "cpu_op", "name": "no duration", "ts": base, "pid": 7, "tid": 7},
        {"ph": "X", "cat": "cpu_op", "name": "back", "ts": base, "dur": -5, "pid": 7, "tid": 7},
        {"ph": "X", "cat": "kernel", "name": "1970", "ts": 12.0, "dur": 1.0, "args": None},
        {"ph": "X"},
        {},
    ]
    rank = read(write(tmp_path / "t.json", events + odd))
    assert rank.steps[0].seconds == pytest.approx(1e-3, rel=1e-3)
    assert any("without a time or a duration" in note for note in rank.notes)
    assert any("clock" in note for note in rank.notes)


def test_kernels_before_their_launch_are_told(tmp_path: Path) -> None:
    events = loading_steps()
    for each in events:
        if each["cat"] == "kernel":
            each["ts"] -= 100
    assert any(
        "before their launch" in each for each in read(write(tmp_path / "t.json", events)).notes
    )


def test_without_steps_or_device_that_is_told(tmp_path: Path) -> None:
    rank = read(write(tmp_path / "t.json", [x("cpu_op", "aten::mm", 0, 10)]))
    assert len(rank.steps) == 1
    assert rank.device is None
    assert any("no steps" in note for note in rank.notes)
    assert any("no device" in note for note in rank.notes)


def test_steps_are_found_by_updates_and_by_repetition(tmp_path: Path) -> None:
    updates = [x("user_annotation", "Optimizer.step#SGD.step", 100.0 * at, 10) for at in range(5)]
    assert len(read(write(tmp_path / "a.json", updates)).steps) == 4
    # Twelve layers are no steps, and neither is what comes in every third step.
    layers = ["linear", "gelu", "linear"] * 12
    pattern = []
    for step in range(9):
        pattern += ["embedding", "arange", "mask", *layers, "softmax", "argmax", "mean"]
        pattern += ["random_"] if step % 3 == 0 else []
    operators = [x("cpu_op", f"aten::{name}", 10.0 * at, 8) for at, name in enumerate(pattern)]
    rank = read(write(tmp_path / "b.json", operators))
    assert (len(rank.steps), rank.boundary) == (8, "repeated pattern of operators")
    assert {round(each.seconds * 1e6) for each in rank.steps} == {420, 430}


def test_ranks_are_laid_over_each_other_at_their_collectives(tmp_path: Path) -> None:
    for rank, late in enumerate((0, 0, 300, 0, 0, 0, 0, 0)):
        info = {"rank": rank, "world_size": 8}
        events = collective_steps(late, offset=5e4 * rank)
        write(tmp_path / f"r{rank}.json.gz", events, distributedInfo=info)
    record = read_traces([tmp_path], "test")
    assert [each.rank for each in record.ranks] == list(range(8))
    assert record.ranks[2].skew_seconds == pytest.approx(300e-6, rel=0.01)
    assert record.ranks[5].skew_seconds == pytest.approx(0, abs=1e-6)
    assert record.ranks[3].clock_offset == pytest.approx(3 * 5e-2)
    assert max(record.ranks, key=lambda each: each.own_seconds).rank == 2


def test_ranks_of_different_length_and_of_sub_groups_are_matched(tmp_path: Path) -> None:
    for rank, late in enumerate((0, 200)):
        events = collective_steps(late, offset=2e4 * rank, steps=6 - 2 * rank)
        for each in events:
            if each["cat"] == "kernel" and "nccl" in each["name"]:
                each["args"]["Group size"] = 2
        # Every rank meets another neighbor at other times.
        events.append(kernel("ncclDevKernel_SendRecv", 2e4 * rank + 50 + rank, 5, 999))
        events[-1]["args"]["Group size"] = 1
        write(tmp_path / f"rank{rank}.json", events)
    (tmp_path / "config.json").write_text('{"lr": 0.1}')
    record = read_traces([tmp_path], "test")
    assert [each.collectives for each in record.ranks] == [6, 4]
    assert record.ranks[1].skew_seconds == pytest.approx(200e-6, rel=0.01)
    assert "matched by time" in record.ranks[0].notes[-1]
    assert "config.json was left out" in record.notes[0]


def test_a_library_is_named_and_a_loop_is_told_from_layers(tmp_path: Path) -> None:
    events = []
    for step in range(4):
        at = 10_000.0 * step
        events += [
            x("user_annotation", f"ProfilerStep#{step}", at, 10_000),
            x("python_function", "train.py(3): main", at, 10_000),
            x("python_function", "PIL/Image.py(9): resize", at, 5_000),
        ]
        for layer in range(20):
            begin = at + 5_000 + 200 * layer
            events += [
                x("python_function", f"nn.Module: Linear_{layer}", begin, 20),
                x("cpu_op", "aten::linear", begin, 10),
                x("python_function", "nn.Module: Cell_0", begin + 100, 20),
                x("cpu_op", "aten::tanh", begin + 100, 10),
                kernel("gemm", begin, 10, -1),
            ]
    rank = read(write(tmp_path / "t.json", events))
    (found,) = {each.function for each in rank.inside.values()}
    assert found == "PIL/Image.py:9 in resize"
    assert rank.inside["train.py:3:main:host"].seconds == pytest.approx(5e-3)
    forward = next(each for each in rank.suspects if each.phase == "forward")
    assert (forward.launches, forward.trips) == (40, 20)
    events = [each for each in events if "Cell" not in each["name"] and "tanh" not in each["name"]]
    rank = read(write(tmp_path / "t.json", events))
    assert next(each for each in rank.suspects if each.phase == "forward").trips <= 1


def test_memory_that_is_kept_has_its_line(tmp_path: Path) -> None:
    events: list[Event] = []

    def memory(at: float, nbytes: int, address: int, total: int) -> Event:
        args = {"Bytes": nbytes, "Addr": address, "Total Allocated": total, "Device Type": 1}
        return {"ph": "i", "name": "[memory]", "ts": at, **HOST, "args": args}

    for step in range(14):
        at = 1000.0 * step
        events += [
            x("user_annotation", f"ProfilerStep#{step}", at, 1000),
            x("python_function", "train.py(3): forgets", at, 400),
            x("python_function", "train.py(9): keeps", at + 500, 400),
            memory(at + 100, 5000, 1, 10_000 + 64 * step),
            memory(at + 300, -5000, 1, 5_000 + 64 * step),
            memory(at + 600, 64, 100 + step, 5_064 + 64 * step),
        ]
    rank = read(write(tmp_path / "t.json", events))
    assert rank.memory is not None
    assert (rank.memory.on_device, rank.memory.events) == (True, 3)
    assert rank.memory.growth_bytes == pytest.approx(64)
    assert rank.memory.peak_bytes == 10_000 + 64 * 13
    assert rank.growth is not None
    assert rank.growth.site is not None
    assert (rank.growth.site.function, rank.growth.bytes_per_step) == ("keeps", 64)


@pytest.mark.parametrize(("dims", "share"), [([[4], [4], []], 0.0), ([[4], [4], [2]], 1.0)])
def test_a_number_of_pythons_is_no_double_tensor(
    tmp_path: Path, dims: list[list[int]], share: float
) -> None:
    types = {"Input type": ["float", "float", "double"], "Input Dims": dims}
    rank = read(write(tmp_path / "t.json", [x("cpu_op", "aten::add_", 0, 10, **types)]))
    assert rank.double_share == share


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"hello", "is not JSON"),
        (b"", "is not JSON"),
        (b'{"weights": [1, 2]}', "no traceEvents"),
        (b"[1, 2, 3]", "holds no events"),
        (gzip.compress(b'{"traceEvents": [', mtime=0)[:8], "is not JSON"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, content: bytes, complaint: str) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(content)
    with pytest.raises(Refused, match=complaint):
        read(path)


def test_a_trace_without_times_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CouldNotOpen, match="none of its 1 events"):
        read(write(tmp_path / "t.json", [{"ph": "M", "name": "process_name"}]))


def test_different_runs_in_one_folder_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.json", loading_steps())
    write(tmp_path / "b.json", loading_steps())
    with pytest.raises(Refused, match="which rank it is"):
        read_traces([tmp_path], "test")
    for name in "ab":
        info = {"rank": 0, "world_size": 2}
        write(tmp_path / f"{name}.json", loading_steps(), distributedInfo=info)
    with pytest.raises(Refused, match="rank 0 comes twice"):
        read_traces([tmp_path], "test")


@pytest.mark.parametrize(
    ("other", "complaint"),
    [(loading_steps(), "no collectives"), (collective_steps(0, offset=3.6e9), "60 minutes apart")],
)
def test_ranks_that_never_met_are_refused(
    tmp_path: Path, other: list[Event], complaint: str
) -> None:
    write(tmp_path / "rank0.json", collective_steps(0))
    write(tmp_path / "rank1.json", other)
    with pytest.raises(Refused, match=complaint):
        read_traces([tmp_path], "test")
