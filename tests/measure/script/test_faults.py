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

from diagnose.records.script import Options
from tests.support.cli import ROOT, command, start
from tests.support.script_runs import run_script, write_script

FAST = Options(steps=30, seconds=1.0, warmup=2)
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
    words = command("script", "--seconds", 2, "--steps", 40, "--warmup", 2, "--json", found, script)
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
    assert done.stderr.count("diagnose: A step") == 1
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
    reason = "the script left by os._exit(5) after 5 steps; at least "
    assert diagnosis["cannot_tell"][0]["reason"].startswith(reason)
    assert reason in done.stderr
    assert done.stdout == ""


def test_out_of_memory_in_a_change_is_noted_and_undone(tmp_path: Path) -> None:
    code = """
    import resource
    class Hungry(torch.nn.Module):
        def forward(self, x):
            parts = [torch.ones(len(x), 500_000) for _ in range(6)]
            return x + sum(each[:, :16] for each in parts)
    model = torch.nn.Sequential(Hungry(), model)
    data = torch.utils.data.TensorDataset(torch.randn(64, 16))
    loader = torch.utils.data.DataLoader(data, batch_size=8)
    update()
    pages = int(open("/proc/self/statm").read().split()[0])
    most = pages * resource.getpagesize() + 300_000_000
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    while True:
        for (x,) in loader:
            update(x)
    """
    done, diagnosis = diagnosed(script_of(tmp_path, code))
    assert done.returncode == 0, done.stderr
    verdict, _, frames = done.stderr.partition("The error that may be this tool's doing:\n")
    assert "Traceback" not in verdict
    assert frames.startswith("Traceback")
    reasons = [each["reason"] for each in diagnosis["cannot_tell"]]
    failed = next(each for each in reasons if "failed with RuntimeError: " in each)
    assert "allocate memory" in failed
    assert failed.endswith("4 batches kept in memory were trained on as one")
    assert diagnosis["step_ms"]["median"] > 0


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


# With so little time two steps of warm-up, twelve plain and twelve sampled ones; then four mapped.
@pytest.mark.parametrize(
    ("step", "ending"),
    [
        (1, "more are needed"),
        (8, "more are needed"),
        (20, "more are needed"),
        (29, "while its operators were counted"),
        (40, "while changes were being tried"),
    ],
)
def test_interrupted_in_every_pass(tmp_path: Path, step: int, ending: str) -> None:
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
    end, record, diagnosis = run_script(script, replace(FAST, seconds=0.01))
    assert (end.code, end.interrupted) == (130, True)
    assert record.steps == step
    assert record.missing.startswith(f"it was interrupted after {step} steps")
    assert record.missing.endswith(ending)
    assert record.missing in [each.reason for each in diagnosis.cannot_tell]


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
                if len(calls) == 20:
                    os.kill(os.getpid(), signal.SIGTERM)
        assert torch.nn.Module.__call__ is own_call and torch.Tensor.item is own_item
        assert stop == [signal.SIGTERM] and len(calls) >= 20
    finally:
        del torch.Tensor.item
        torch.nn.Module.__call__ = call
        torch.utils.data.DataLoader.__init__ = construct
    sys.exit(6)
    """
    handler = signal.getsignal(signal.SIGTERM)
    end, record, _ = run_script(script_of(tmp_path, code), FAST)
    assert (end.code, end.error) == (6, "")
    assert record.steps >= 20
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
    assert "(code 1) after 10 steps; at least" in record.missing


def test_after_a_change_an_error_is_not_called_the_scripts(tmp_path: Path) -> None:
    """Even in a step in which nothing was changed: what was changed before may have led there."""
    end, record, diagnosis = run_script(
        script_of(
            tmp_path,
            """
            many = [torch.nn.Parameter(torch.ones(4)) for _ in range(300)]
            optimizer = torch.optim.SGD(many, lr=0.01, foreach=False)
            def update():
                optimizer.zero_grad()
                model(torch.cat(many).view(-1, 16)).sum().backward()
                optimizer.step()
            names = torch.optim.SGD.step.__code__, update.__code__
            changed = False
            for step in range(400):
                update()
                if (torch.optim.SGD.step.__code__, update.__code__) == names:
                    flags = [group.get("fused") or group.get("foreach") for group
                             in optimizer.param_groups]
                    changed = changed or any(flags)
                    if changed and not any(flags):
                        raise ValueError("mine")
            """,
        ),
        FAST,
    )
    assert (end.code, end.stopped, end.error) == (0, True, "")
    assert end.frames.endswith("ValueError: mine\n")
    assert "train.py" in end.frames
    assert str(ROOT / "diagnose") not in end.frames
    assert diagnosis.findings
    assert not [each for each in record.changes if each.failed]
    note = next(each for each in diagnosis.notes if "ValueError: mine" in each)
    assert "after these trials: " in note
    assert "none yet" not in note
    assert "diagnose watch train.py" in note


@pytest.mark.parametrize("steps", [4, 22])
def test_too_few_steps_say_how_many_more(tmp_path: Path, steps: int) -> None:
    script = script_of(tmp_path, f"for _ in range({steps}): update()\n")
    end, record, diagnosis = run_script(script, FAST)
    assert (end.code, end.stopped) == (0, False)
    assert f"after {steps} steps; at least " in record.missing
    assert diagnosis.findings == ()
    assert diagnosis.sentence.startswith("No diagnosis")
    assert diagnosis.cannot_tell[0].reason == record.missing


def test_an_update_moves_every_tensor_once(tmp_path: Path) -> None:
    code = """
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    while True: update()
    """
    _, record, _ = run_script(script_of(tmp_path, code), FAST)
    # Parameter and momentum are read and written, the gradient is read.
    assert record.update_bytes == 5 * 4 * (16 * 16 + 16)
