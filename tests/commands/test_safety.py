"""Can `script` be run on a real job? It is ended in every way, and the job's folder compared."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.cli import ROOT, command, diagnose_here, environment, started
from tests.support.folders import delivered, fill, look
from tests.support.script_runs import write_script

SECONDS = 120

# Saves as real scripts do, with torch's and safetensors' own writers and a loader's workers.
JOB = """
import io, os, resource, signal, sys, time
import fsspec, numpy, torch
from safetensors.torch import save_file

class Data(torch.utils.data.Dataset):
    def __len__(self): return 4
    def __getitem__(self, index):
        with open("log.csv", "a") as log: log.write(f"{index}\\n")
        return torch.zeros(4)

model = torch.nn.Linear(4, 4)
for batch in torch.utils.data.DataLoader(Data(), num_workers=2): pass
for epoch in range(3):
    torch.save(model.state_dict(), "best.pt")
    os.replace("last.pt", "epoch-1.pt")
    torch.save(model.state_dict(), "tmp.pt")
    os.replace("tmp.pt", "last.pt")
    torch.save(model.state_dict(), "epoch-2.pt", _use_new_zipfile_serialization=False)
save_file(model.state_dict(), "model.safetensors")
torch.jit.save(torch.jit.script(model), "old/deep/weights.pt")
buffer = io.BytesIO()
torch.save(model.state_dict(), buffer)
with fsspec.open("file://" + os.path.abspath("old/notes.txt"), "wb") as file:
    file.write(buffer.getvalue())
torch.from_file("array.bin", shared=True, size=8, dtype=torch.uint8).fill_(7)
os.makedirs("checkpoints/first")
torch.save(model.state_dict(), "checkpoints/first/model.pt")
print("written", flush=True)
ending = sys.argv[1]
if ending == "train":
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    while True:
        optimizer.zero_grad(); model(torch.randn(2, 4)).sum().backward(); optimizer.step()
if ending == "raise": raise KeyError("the script's own")
if ending == "exit": os._exit(5)
if ending == "kill": os.kill(os.getpid(), signal.SIGKILL)
if ending == "memory":
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
    kept = [bytearray(1 << 28) for _ in range(8)]
if ending == "leave" and not os.fork(): signal.signal(signal.SIGTERM, signal.SIG_IGN)
if ending in ("leave", "wait"): time.sleep(600)
"""
NEW = {"best.pt", "last.pt", "epoch-1.pt", "epoch-2.pt", "model.safetensors", "log.csv"}
NEW |= {"array.bin", "old/deep/weights.pt", "old/notes.txt", "checkpoints/first/model.pt"}


TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")


def start(folder: Path, words: Sequence[object], **extra: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(each) for each in words],
        cwd=folder,
        env=environment({"PYTHONPATH": str(ROOT), **extra}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def run(folder: Path, *words: object, **extra: str) -> subprocess.CompletedProcess[str]:
    return start(folder, command("script", *words), **extra)


def run_ranks(folder: Path, *words: object) -> subprocess.CompletedProcess[str]:
    script = command("script", *words)[1:]
    return start(folder, [*TORCHRUN, *script], OMP_NUM_THREADS="1")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return fill(tmp_path / "job")


@pytest.mark.parametrize(
    ("ending", "code", "said"),
    [
        ("train", 0, "diagnose: train.py · "),
        ("raise", 1, 'KeyError: "the script\'s own"'),
        ("exit", 5, "put back"),
        ("kill", 137, "the script was killed by SIGKILL (out of memory?)"),
        ("memory", 1, "MemoryError"),
    ],
)
def test_files_are_put_back_however_the_script_ends(
    tmp_path: Path, folder: Path, ending: str, code: int, said: str
) -> None:
    before = look(folder)
    script = write_script(tmp_path, JOB)
    why = folder / "why.json"
    done = run(folder, "--seconds", 1, "--steps", 40, "--json", why, script, ending)
    assert done.returncode == code, done.stderr
    assert done.stdout == "written\n"
    assert said in done.stderr
    lines = done.stderr.splitlines()
    assert lines[0].startswith("diagnose: throw-away run: existing files are put back ")
    told, new = lines[-1].rsplit(maxsplit=1)
    assert told == "diagnose: 9 files were put back; what the run wrote is in"
    assert (folder / new).is_dir()
    if ending == "train":
        assert json.loads(why.read_text())["findings"]
    why.unlink(missing_ok=True)
    assert look(folder) == before
    assert delivered(folder).keys() == NEW


def test_keep_files_leaves_new_ones(tmp_path: Path, folder: Path) -> None:
    before = look(folder)
    done = run(folder, "--keep-files", write_script(tmp_path, JOB), "exit")
    after = look(folder)
    assert {name: facts for name, facts in after.items() if name in before} == before
    assert (folder / "checkpoints/first/model.pt").is_file()
    assert "checkpoints/first/model.pt" not in delivered(folder)
    assert "new ones stay" in done.stderr


def test_a_polite_kill_is_passed_on_and_nothing_is_left(tmp_path: Path, folder: Path) -> None:
    before = look(folder)
    words = command("script", write_script(tmp_path, JOB), "leave")
    with started(words, {"PYTHONPATH": str(ROOT)}, folder) as child:
        child.wait_until((folder / "checkpoints/first/model.pt").exists)
        done = child.interrupt(signal.SIGTERM)
    assert (done.code, done.left) == (143, ())
    assert "diagnose: the script was killed by SIGTERM" in done.err.splitlines()
    assert look(folder) == before


def test_the_next_start_puts_back_what_a_killed_parent_left(tmp_path: Path, folder: Path) -> None:
    before = look(folder)
    words = command("script", write_script(tmp_path, JOB), "wait")
    with started(words, {"PYTHONPATH": str(ROOT)}, folder) as child:
        child.wait_until((folder / "checkpoints/first/model.pt").exists)
        time.sleep(0.5)  # the file is there a moment before it is complete
        done = child.interrupt(signal.SIGKILL)
    assert done.code == -signal.SIGKILL
    assert look(folder) != before
    again = run(folder, write_script(tmp_path, "print(open('log.csv').read())", "next.py"))
    first, second, *_ = again.stderr.splitlines()
    assert first.startswith("diagnose: a run that was killed had left its files here: 9 files were")
    assert second.startswith("diagnose: throw-away run: ")
    assert again.stdout == "step,loss\n1,0.5\n\n"
    assert look(folder) == before
    assert delivered(folder).keys() == NEW


@pytest.mark.parametrize(
    ("job", "words"),
    [
        ("ranks.py", ("fsdp2",)),
        ("lightning_job.py", ()),
    ],
)
def test_two_ranks_of_a_framework_leave_their_folder_alone(
    folder: Path, job: str, words: tuple[str, ...]
) -> None:
    """Logs, checkpoints and traces that are there already are those of a better run."""
    for name in ("log.csv", "best.ckpt", "traces-0.json"):
        (folder / name).write_text("kept")
    before = look(folder)
    script = ROOT / "tests" / "support" / "watched" / job
    options = ("--seconds", 2, "--steps", 60, "--warmup", 2)
    done = run_ranks(folder, *options, script, ".", *words)
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stderr.split())
    assert said.count(f"diagnose: {job} · ") == 1, said
    assert "failed with" not in said
    assert ("nothing was tried because FSDP2" in said) is (words == ("fsdp2",))
    assert look(folder) == before


def test_two_ranks_share_one_protection(tmp_path: Path, folder: Path) -> None:
    before = look(folder)
    code = """
    import os, time, torch
    import torch.distributed as dist
    dist.init_process_group("gloo")
    for epoch in range(3):
        torch.save(dist.get_rank(), "best.pt")
        torch.save(dist.get_rank(), f"rank-{dist.get_rank()}.tmp")
        os.replace(f"rank-{dist.get_rank()}.tmp", "last.pt")
        with open("log.csv", "a") as log: log.write("x")
        dist.barrier()
    if dist.get_rank():
        time.sleep(1)
    """
    done = run_ranks(folder, write_script(tmp_path, code))
    assert done.stderr.count("throw-away run") == 1, done.stderr
    assert done.stderr.count("3 files were put back; what the run wrote is in") == 1, done.stderr
    assert look(folder) == before
    assert delivered(folder).keys() == {"best.pt", "last.pt", "log.csv"}


def test_trackers_stay_offline_and_pushes_are_refused(tmp_path: Path, folder: Path) -> None:
    """With a library in place of each, which says what it was told."""
    before = look(folder)
    libraries = tmp_path / "libraries"
    (libraries / "mlflow/tracking/_tracking_service").mkdir(parents=True)
    told = "def init(**options): print(__name__, options)\n"
    (libraries / "wandb.py").write_text(told)
    (libraries / "neptune.py").write_text(told.replace("init", "init_run"))
    (libraries / "comet_ml.py").write_text(
        told.replace("init", "start")
        + "class Experiment:\n    def __init__(self, api_key): print('online')\n"
        "class OfflineExperiment:\n    def __init__(self, project_name): print(project_name)\n"
    )
    utils = libraries / "mlflow/tracking/_tracking_service/utils.py"
    utils.write_text(
        "def set_tracking_uri(uri): print('mlflow', uri)\n_resolve_tracking_uri = None"
    )
    code = """
    import os, sys
    sys.path.insert(0, os.environ["LIBRARIES"])
    assert "huggingface_hub" not in sys.modules
    import wandb, neptune, comet_ml
    from mlflow.tracking._tracking_service.utils import set_tracking_uri
    wandb.init(project="p", mode="online"); wandb.init(mode="disabled"); wandb.init()
    neptune.init_run(mode="async")
    comet_ml.start(online=True)
    comet_ml.Experiment("key", project_name="comet offline")
    set_tracking_uri("https://example.org")
    set_tracking_uri("file:///here")
    print(os.environ["WANDB_MODE"], os.path.isdir(os.environ["WANDB_DIR"]))
    open(os.path.join(os.environ["WANDB_DIR"], "offline-run"), "w").write("run")
    import huggingface_hub
    for push in (huggingface_hub.HfApi().create_repo, huggingface_hub.upload_file):
        try: push("x")
        except RuntimeError as error: print("refused:", error)
    """
    done = run(folder, write_script(tmp_path, code), LIBRARIES=str(libraries))
    lines = done.stdout.splitlines()
    assert lines.pop(5) == "comet offline"
    assert lines[:5] == [
        "wandb {'project': 'p', 'mode': 'offline'}",
        "wandb {'mode': 'disabled'}",
        "wandb {}",
        "neptune {'mode': 'offline'}",
        "comet_ml {'online': False}",
    ], done.stderr
    assert lines[5].startswith("mlflow file:///")
    assert lines[6] == "mlflow file:///here"
    assert lines[7] == "offline True"
    assert [line.split(",")[0] for line in lines[8:]] == [
        "refused: this is a throw-away run of diagnose"
    ] * 2
    assert look(folder) == before
    assert delivered(folder) == {"offline-run": b"run"}


def test_a_rank_that_a_launcher_has_left_behind_is_heard() -> None:
    left = diagnose_here("script", "nowhere.py", RANK="3", WORLD_SIZE="2")
    assert (left.code, left.complaint) == (2, "there is no script nowhere.py")
    second = diagnose_here("script", "nowhere.py", RANK="1", WORLD_SIZE="2")
    assert (second.code, second.err) == (2, "")


def test_no_place_for_the_scratch_is_one_sentence(tmp_path: Path, folder: Path) -> None:
    (folder / ".diagnose-aside").write_text("in the way")
    script = write_script(tmp_path, "print('ran')")
    code = (
        "import sys, tempfile; tempfile.tempdir = sys.argv.pop(1); sys.argv[0] = 'diagnose'; "
        "from diagnose.commands.cli import main; sys.exit(main())"
    )
    done = start(folder, [sys.executable, "-c", code, folder / "best.pt", "script", script])
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("diagnose: files cannot be protected: ")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.child
def test_ctrl_c_on_a_terminal_is_heard_once(tmp_path: Path, folder: Path) -> None:
    """The terminal tells both processes; the parent must not tell the child again."""
    before = look(folder)
    code = """
    import signal, sys, time
    heard = []
    signal.signal(signal.SIGINT, lambda *_: heard.append(1))
    open("best.pt", "w").write("x")
    print("ready", flush=True)
    while not heard: time.sleep(0.01)
    time.sleep(1)
    print(f"heard {len(heard)}", flush=True)
    """
    script = write_script(tmp_path, code)
    pid, terminal = os.forkpty()
    if pid == 0:
        os.chdir(folder)
        extra = {"PYTHONPATH": str(ROOT)}
        os.execve(sys.executable, command("script", script), environment(extra))
    said = b""
    try:
        while b"was put back" not in said:
            said += os.read(terminal, 4096)
            if b"ready" in said and b"^C" not in said:
                os.write(terminal, b"\x03")
                time.sleep(0.2)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(terminal)
    assert b"heard 1\r\n" in said
    assert look(folder) == before
