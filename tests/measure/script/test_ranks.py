"""Do several ranks, whoever started them, change the same in the same steps, and never wait?"""

from __future__ import annotations

import json
import sys
import textwrap
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from torch.distributed import distributed_c10d

from diagnose.measure.script import ranks as ranks_module
from diagnose.measure.script.patches import Patches
from diagnose.measure.script.ranks import Ranks
from tests.support.cli import Outcome, command, start, started
from tests.support.rank_jobs import find_free_port
from tests.support.script_runs import write_script

HEAD = """
import os, sys, time
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
torch.set_num_threads(1)
"""
# An evaluation in which all ranks exchange, one in which they wait for what rank 0 tells them, and
# work that only rank 0 does: what one rank left out alone would leave the others waiting.
TRAIN = (
    HEAD
    + """
def evaluate(model):
    model.eval()
    with torch.no_grad():
        total = model(torch.randn(64, 16)).sum()
    time.sleep(0.004)
    dist.all_reduce(total)
    model.train()
    return total.item()

def choose(model, rank):
    told = torch.zeros(1)
    if rank == 0:
        model.eval()
        with torch.no_grad():
            told += model.module(torch.randn(64, 16)).sum()
        model.train()
    dist.broadcast(told, 0)
    return told.item()

def describe(loss):
    time.sleep(0.006)
    return float(loss.detach())

class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 400
    def __getitem__(self, place):
        time.sleep(0.0005)
        return torch.randn(16)

def train(rank, count, port, steps=10**6):
    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", rank=rank, world_size=count, init_method=address)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 16))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step = 0
    while step < steps:
        for x in torch.utils.data.DataLoader(Rows(), batch_size=4):
            optimizer.zero_grad()
            loss = model(x).sum()
            loss.backward()
            optimizer.step()
            step += 1
            if rank == 0:
                describe(loss)
            if step % 6 == 0:
                evaluate(model)
            if step % 7 == 0:
                choose(model, rank)
            if step == steps:
                break
    dist.destroy_process_group()
    print("trained", rank, flush=True)
"""
)
SPAWNING = "\nif __name__ == '__main__':\n    mp.spawn(train, (2, PORT), 2)\n    print('went on')\n"
# Threads of gloo may abort the interpreter while it ends, with us or without.
BY_HAND = "\ntrain(int(sys.argv[1]), 2, int(sys.argv[2]), int(sys.argv[3]))\nos._exit(0)\n"
OPTIONS = ("--seconds", 20, "--steps", 400, "--warmup", 2)


def together(*commands: list[str], extra: dict[str, str]) -> list[Outcome]:
    """Processes that need each other, started at the same time."""
    with ExitStack() as stack:
        jobs = [stack.enter_context(started(each, extra)) for each in commands]
        return [each.finish() for each in jobs]


def test_ranks_of_plain_processes_try_the_same_in_the_same_steps(tmp_path: Path) -> None:
    script, found = write_script(tmp_path, TRAIN + BY_HAND), tmp_path / "f.json"
    port = str(find_free_port())
    kept = ("--json", found, "--label", "mine", "--reports", tmp_path)
    words = [command("script", *OPTIONS, *kept, script, rank, port, 10**6) for rank in (0, 1)]
    # As a launcher that does not know better would set them.
    first, second = together(*words, extra={"WORLD_SIZE": "4", "SLURM_NTASKS": "2"})
    assert (first.code, second.code) == (0, 0), first.err + second.err
    assert first.err.count("diagnose: train.py · ") == 1
    # It may well end before the first does.
    about_files = ("throw-away run", "another run is going on here")
    said = [
        each for each in second.err.splitlines() if not any(map(each.__contains__, about_files))
    ]
    assert said == []
    assert "WORLD_SIZE=4 in the environment, but the process group has 2 ranks" in first.err
    assert "rank 0 takes " in found.read_text()
    record = json.loads((tmp_path / "mine" / "script.json").read_text())
    one, other = (
        [(each["block"], each["variant"]) for each in rank["windows"]] for rank in record["ranks"]
    )
    assert one == other
    tried = {each["what"] for each in record["changes"]}
    assert {
        "gradients were not exchanged",
        "batches kept in memory were used instead of the loader's",
        "describe returned its results of an earlier step",
    } <= tried
    left_out = {each["function"]: len(each["left_out"]) for each in record["occasions"]}
    assert left_out["evaluate"] > 3
    assert left_out["choose"] == 0


def test_spawned_ranks_are_watched_and_tell_once(tmp_path: Path) -> None:
    script = write_script(tmp_path, TRAIN + SPAWNING.replace("PORT", str(find_free_port())))
    found = tmp_path / "f.json"
    done = start(command("script", *OPTIONS, "--json", found, script), {})
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("diagnose: train.py · ") == 1
    assert "went on" not in done.stdout
    diagnosis = json.loads(found.read_text())
    assert "rank 0 takes " in str(diagnosis)
    assert diagnosis["steps"] > 60


def test_a_rank_without_us_is_not_kept_waiting(tmp_path: Path) -> None:
    script, port = write_script(tmp_path, TRAIN + BY_HAND), str(find_free_port())
    watched = command("script", *OPTIONS, script, 0, port, 80)
    plain = [sys.executable, str(script), "1", port, "80"]
    first, second = together(watched, plain, extra={})
    assert (first.code, second.code) == (0, 0), first.err + second.err
    assert (first.out, second.out) == ("trained 0\n", "trained 1\n")
    told = " ".join(first.err.split())
    assert "nothing was tried because rank 1 did not answer within 20 s" in told
    assert first.err.count("diagnose: train.py · ") == 1
    assert ", tried" not in first.err


SHARDED = (
    HEAD
    + """
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
dist.init_process_group("gloo")
model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Linear(16, 16))
if sys.argv[1] == "FSDP2":
    model = fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters())
else:
    model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW)
while True:
    optimizer.zero_grad()
    model(torch.randn(8, 16)).sum().backward()
    optimizer.step()
"""
)


@pytest.mark.parametrize("kind", ["FSDP2", "ZeRO"])
def test_sharded_jobs_are_only_watched(tmp_path: Path, kind: str) -> None:
    script = write_script(tmp_path, SHARDED)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
    words = [*torchrun, *command("script", *OPTIONS, script, kind)[1:]]
    done = start([*words[:3], "--standalone", *words[3:]], {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("diagnose: train.py · ") == 1
    assert f"nothing was tried because {kind}" in done.stderr
    assert "(tried" not in done.stderr


def test_accumulation_is_judged_by_what_it_exchanges(tmp_path: Path) -> None:
    code = """
    import contextlib
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 16))
    optimizer = torch.optim.SGD(model.parameters())
    while True:
        optimizer.zero_grad()
        for part in range(3):
            saves = sys.argv[1] == "no_sync" and part < 2
            with model.no_sync() if saves else contextlib.nullcontext():
                model(torch.randn(8, 16)).sum().backward()
        optimizer.step()
    """
    script = write_script(tmp_path, HEAD + textwrap.dedent(code))
    for kind, once, ranks in (("plain", True, 2), ("no_sync", False, 4)):
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        count = f"--nproc-per-node={ranks}"
        words = [*torchrun, count, *command("script", *OPTIONS, script, kind)[1:]]
        for _ in range(3):  # on a busy machine two seconds may end before both are tried
            done = start(words, {"OMP_NUM_THREADS": "1"})
            assert done.returncode == 0, done.stderr
            told = " ".join(done.stderr.split())
            if ("exchanged once per step instead of 3 times" in told) is once:
                break
        assert ("exchanged once per step instead of 3 times" in told) is once, told
        assert ("gradients were not exchanged" in told) is not once, told
        assert done.stderr.count("diagnose: train.py · ") == 1


def test_survivors_of_chaos_end_and_the_lowest_says_why() -> None:
    done = start([sys.executable, "-m", "tests.support.chaos", "4"], {})
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("4 of 4 right\n")


# --- one decision, whoever is late ---


def rank_of(store: Any, rank: int, count: int, monkeypatch: pytest.MonkeyPatch) -> Ranks:
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: count)
    monkeypatch.setattr(dist, "get_rank", lambda: rank)
    monkeypatch.setattr(dist, "get_backend", lambda: "gloo")
    monkeypatch.setattr(distributed_c10d, "_get_default_store", lambda: store)
    ranks = Ranks()
    assert ranks.look()
    assert not ranks.look()
    return ranks


def test_the_first_word_counts_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    store = dist.HashStore()  # type: ignore[attr-defined]
    leader, other = (rank_of(store, rank, 2, monkeypatch) for rank in (0, 1))
    thread = threading.Thread(target=leader.meet, args=("step", Patches()))
    thread.start()
    other.meet("step", Patches())
    thread.join()
    assert leader.together
    assert other.together
    leader.agree({"steps": 4})
    assert other.agree({"steps": 5}) == {"steps": 4}
    # Nobody decides in time: the one that waited does, and the late one hears it.
    monkeypatch.setattr(ranks_module, "LONGEST_STEP_SECONDS", 0.0)
    assert other.decide(None, lambda _: "own", seconds=0.01) == "own"
    assert leader.agree("late") == "late"
    assert leader.apart == other.apart != ""
    assert not leader.together
