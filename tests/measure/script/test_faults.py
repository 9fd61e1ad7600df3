"""Does a script that forks, dies, runs out of memory or loses a rank leave a true word behind?"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from diagnose.measure.script.watch import boundary
from diagnose.records.script import GARBAGE, Options
from tests.support.cli import ROOT, command, start
from tests.support.script_runs import run_script, write_script

FAST = Options(steps=60, seconds=20.0, warmup=2)
HEAD = """
import multiprocessing, os, signal, subprocess, sys, threading, time
import torch
torch.set_num_threads(1)
model = torch.nn.Linear(16, 16)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
def update(x=None):
    optimizer.zero_grad()
    model(torch.randn(8, 16) if x is None else x).sum().backward()
    optimizer.step()
"""


def script_of(directory: Path, code: str) -> Path:
    return write_script(directory, HEAD + textwrap.dedent(code))


def launch(
    words: list[str], found: Path, **extra: str
) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    done = start(words, extra)
    assert found.exists(), done.stderr
    return done, json.loads(found.read_text())


def diagnosed(script: Path) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    found = script.with_suffix(".json")
    words = command(
        "script", "--seconds", 20, "--steps", 60, "--warmup", 2, "--json", found, script
    )
    return launch(words, found)


def test_children_of_the_script_are_its_own(tmp_path: Path) -> None:
    code = """
    def child(queue):
        for _ in range(40):
            update()
        queue.put(os.getpid())
    def wait_for_ever():
        while True:
            time.sleep(0.1)
    if __name__ == "__main__":
        for step in range(10**6):
            update()
            if step == 22:
                multiprocessing.get_context("fork").Process(target=wait_for_ever).start()
            if step == 20:
                for how in ("fork", "spawn"):
                    context = multiprocessing.get_context(how)
                    queue = context.Queue()
                    process = context.Process(target=child, args=(queue,))
                    process.start()
                    assert queue.get(timeout=100) == process.pid
                    process.join()
                forked = os.fork()
                if not forked:
                    for _ in range(40):
                        update()
                    sys.exit(7)
                code = os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1])
                words = [sys.executable, "-c", "print('sub', end=' ')"]
                print(subprocess.check_output(words, text=True), code, flush=True)
    """
    done, diagnosis = diagnosed(script_of(tmp_path, code))
    assert done.returncode == 0, done.stderr
    assert done.stdout == "sub  7\n"
    assert done.stderr.count(" steps in ") == 1
    assert "Traceback" not in done.stderr
    assert diagnosis["findings"]


def test_leaving_by_the_back_door_still_tells(tmp_path: Path) -> None:
    code = """
    class Log:
        def write(self, text): pass
        def flush(self): pass
    sys.stdout = sys.stderr = Log()
    for _ in range(5):
        update()
    os._exit(5)
    """
    done, diagnosis = diagnosed(script_of(tmp_path, code))
    assert done.returncode == 5
    ending = "the script left by os._exit(5) after 5 steps"
    assert diagnosis["notes"][0].startswith(ending)
    assert ending in done.stderr
    assert done.stdout == ""


@pytest.mark.alone
def test_a_killed_rank_is_named_by_the_other(tmp_path: Path) -> None:
    code = """
    import torch.distributed as dist
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(model)
    for step in range(10**6):
        update()
        if step == 9 and dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
    """
    script, found = script_of(tmp_path, code), tmp_path / "found.json"
    words = ["--seconds", "2", "--steps", "40", "--json", str(found), str(script)]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
    done, diagnosis = launch(
        [*torchrun, "-m", "diagnose", "script", *words], found, OMP_NUM_THREADS="1"
    )
    assert done.returncode == 1
    told = "No diagnosis: rank 0 raised RuntimeError, rank 1 did not answer after 10 steps."
    assert diagnosis["sentence"] == told
    assert done.stderr.count("diagnose: No diagnosis") == 1
    theirs = done.stderr.partition("diagnose: No diagnosis")[0]
    assert f'{script}", line ' in theirs
    assert str(ROOT / "diagnose") not in theirs


# Two steps of warm-up, six plain and eight sampled ones, four mapped; then trials.
@pytest.mark.parametrize("step", [1, 5, 12, 19, 60])
def test_interrupted_in_every_pass(tmp_path: Path, step: int) -> None:
    code = """
    def work():
        return sum(number * number for number in range(30_000))
    for step in range(1, 10**6):
        update()
        work()
        if step == LAST:
            os.kill(os.getpid(), signal.SIGINT)
    """
    script = script_of(tmp_path, code.replace("LAST", str(step)))
    end, record, diagnosis = run_script(script, replace(FAST, steps=200))
    assert (end.code, end.interrupted) == (130, True)
    assert record.steps == step
    ended = f"it was interrupted after {step} steps"
    if step == 1:
        assert record.missing.startswith(ended)
        assert not diagnosis.findings
    else:
        assert diagnosis.findings
        assert diagnosis.notes[0].startswith(ended)
        assert ("what this run computed" in " ".join(diagnosis.notes)) == (step == 60)
        assert diagnosis.phases or step < 19


def test_steps_of_another_thread_are_left_alone(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code = """
    def train():
        for _ in range(60):
            update()
        print("trained", flush=True)
    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    """
    end, record, _ = run_script(script_of(tmp_path, code), FAST)
    assert (end.code, end.stopped, record.steps) == (0, False, 0)
    assert capfd.readouterr() == ("trained\n", "")


def test_whole_steps_in_a_graph_are_only_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a stand-in for CUDA's graphs, which no hook inside sees replayed."""

    class Graph:
        def replay(self) -> None:
            sum(range(20_000))

    monkeypatch.setattr(boundary, "graph_class", lambda: Graph)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    code = """
    for _ in range(3):
        update()
    graph = torch.cuda.CUDAGraph()
    for _ in range(200):
        graph.replay()
    """
    end, record, diagnosis = run_script(script_of(tmp_path, code), replace(FAST, seconds=0.2))
    assert (end.code, end.stopped) == (0, False)
    assert record.boundary == "graph replay"
    assert record.step_seconds
    assert not record.changes
    assert any("whole steps are replayed as a CUDA graph" in each for each in diagnosis.notes)


def test_what_the_script_put_into_torch_stays(tmp_path: Path) -> None:
    code = """
    calls, item = [], torch.Tensor.item
    call, construct = torch.nn.Module.__call__, torch.utils.data.DataLoader.__init__
    def own_item(tensor):
        return item(tensor)
    def own_call(module, *args):
        calls.append(len(args))
        return call(module, *args)
    def own_construct(loader, *args, **options):
        construct(loader, *args, **options)
    torch.Tensor.item = own_item
    torch.nn.Module.__call__ = own_call
    torch.utils.data.DataLoader.__init__ = own_construct
    data = torch.utils.data.TensorDataset(torch.randn(64, 16))
    stop = []
    signal.signal(signal.SIGTERM, lambda number, frame: stop.append(number))
    try:
        while not stop:
            for (x,) in torch.utils.data.DataLoader(data, batch_size=8):
                update(x)
                x.sum().item()
                if len(calls) == 16:  # before anything is changed
                    os.kill(os.getpid(), signal.SIGTERM)
        assert torch.nn.Module.__call__ is own_call and torch.Tensor.item is own_item
        assert stop == [signal.SIGTERM] and len(calls) >= 16
    finally:
        del torch.Tensor.item
        torch.nn.Module.__call__ = call
        torch.utils.data.DataLoader.__init__ = construct
    sys.exit(6)
    """
    handler = signal.getsignal(signal.SIGTERM)
    end, record, _ = run_script(script_of(tmp_path, code), FAST)
    assert (end.code, end.error) == (6, "")
    assert record.steps >= 16
    assert any("Module.__call__" in note for note in record.notes)
    assert signal.getsignal(signal.SIGTERM) is handler


def test_the_scripts_error_is_shown_by_its_own_hook(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    code = """
    import traceback
    def own(kind, error, trace):
        print("own hook", [each.name for each in traceback.extract_tb(trace)], file=sys.stderr)
    sys.excepthook = own
    def train():
        for step in range(10**6):
            update()
            if step == 9:
                raise ValueError("no more data")
    train()
    """
    end, record, _ = run_script(script_of(tmp_path, code), FAST)
    assert (end.code, end.error) == (1, "ValueError")
    assert capsys.readouterr().err == "own hook ['<module>', 'train']\n"
    assert "(code 1) after 10 steps" in record.notes[0]


@pytest.mark.parametrize(
    ("ending", "code", "named"),
    [('raise ValueError("mine")', 0, "ValueError: mine"), ("sys.exit(6)", 6, "SystemExit: 6")],
)
def test_after_a_change_an_error_is_not_called_the_scripts(
    tmp_path: Path, ending: str, code: int, named: str
) -> None:
    """Even in a step in which nothing was changed: what was changed before may have led there."""
    end, record, diagnosis = run_script(
        script_of(
            tmp_path,
            f"""
            import gc
            def describe():
                return sum(number * number for number in range(30_000))
            plain, before, changes = describe.__code__, describe.__code__, 0
            for step in range(400):
                update()
                describe()
                now = describe.__code__
                changes += now is not before
                # Late enough for a trial, and in none: not even in one of the garbage collector.
                if step > 200 and changes > 4 and now is plain and not gc.get_freeze_count():
                    {ending}
                before = now
            """,
        ),
        replace(FAST, steps=300),
    )
    assert (end.code, end.stopped, end.error) == (code, True, "")
    assert end.frames.endswith(f"{named}\n")
    assert "train.py" in end.frames
    assert str(ROOT / "diagnose") not in end.frames
    assert diagnosis.findings
    assert not [each for each in record.changes if each.failed]
    note = next(each for each in diagnosis.notes if named in each)
    assert "after these trials: " in note
    assert "diagnose watch train.py" in note


@pytest.mark.parametrize(("steps", "is_told"), [(2, False), (4, True), (24, True)])
def test_whatever_was_seen_is_told(tmp_path: Path, steps: int, is_told: bool) -> None:
    script = script_of(tmp_path, f"for _ in range({steps}): update()\n")
    end, record, diagnosis = run_script(script, FAST)
    assert (end.code, end.stopped) == (0, False)
    assert bool(diagnosis.findings) == is_told
    assert diagnosis.step_ms is not None
    assert bool(record.missing) == diagnosis.sentence.startswith("No diagnosis") == (not is_told)
    if not is_told:
        assert "after 2 steps, and the first 2 only warm up" in record.missing
        assert diagnosis.cannot_tell[0].reason == record.missing


def test_updates_by_hand_and_marked_steps_are_steps(tmp_path: Path) -> None:
    by_hand = """
    for _ in range(10**6):
        model(torch.randn(8, 16)).sum().backward()
        for each in model.parameters():
            each.data -= 0.01 * each.grad
            each.grad = None
    """
    marked = """
    import diagnose
    while True:
        torch.randn(64, 64) @ torch.randn(64, 64)
        diagnose.step()
    """
    for code, ends_with in ((by_hand, "backward pass"), (marked, "call of diagnose.step()")):
        end, record, diagnosis = run_script(script_of(tmp_path, code), FAST)
        assert end.stopped
        assert record.boundary == ends_with
        assert not [each for each in record.notes if "failed" in each]
        assert diagnosis.findings


def test_the_garbage_collector_is_told_apart_from_the_line_that_calls_it(tmp_path: Path) -> None:
    code = """
    import gc
    index = [[number] for number in range(20_000)]
    while True:
        update()
        gc.collect()
    """
    _, record, diagnosis = run_script(script_of(tmp_path, code), replace(FAST, steps=26))
    seconds = {each.key: each.seconds for each in record.suspects}
    assert max(seconds, key=lambda key: seconds[key]) == GARBAGE
    assert "leave collecting to Python" in diagnosis.findings[0].advice


def test_an_update_moves_every_tensor_once(tmp_path: Path) -> None:
    code = """
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    while True: update()
    """
    _, record, _ = run_script(script_of(tmp_path, code), FAST)
    # Parameter and momentum are read and written, the gradient is read.
    assert record.update_bytes == 5 * 4 * (16 * 16 + 16)
