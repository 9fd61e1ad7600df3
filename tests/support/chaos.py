"""Do the ranks of a script end whatever happens to them? `python -m tests.support.chaos 100`.

Each run trains with 2 or 4 gloo ranks under `diagnose script`. Ranks are delayed at random, and at
a random step one or two are killed, raise, or leave. Nobody starts the ranks but this process,
so nobody ends them either: every survivor must end by itself, and the lowest must say why.
"""

from __future__ import annotations

import os
import random
import re
import signal
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

import diagnose.measure.script.session  # noqa: F401  # the ranks are forked with it
from diagnose.commands.cli import main
from tests.support.rank_jobs import find_free_port

LONGEST_SECONDS = 120
# Every rank says that its run is thrown away, and that it was killed; only one gives the verdict.
VERDICT = re.compile(r"^diagnose: (.* · .*|No diagnosis.*)$", re.MULTILINE)
STEPS = (0, 1, 6, 12, 20, 30, 34, 36, 40, 60, 100, 160, 250, 10**9)
KINDS = ("kill", "kill", "raise", "leave", "sleep")
SCRIPT = """
import os, random, signal, sys, time
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
chance = random.Random(f"{os.environ['SEED']} {rank}")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 16))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

def evaluate():
    model.eval()
    with torch.no_grad():
        total = model(torch.ones(4, 16)).sum()
    dist.all_reduce(total)
    model.train()
    return total.item()

def describe(loss):
    time.sleep(0.001 * (rank + 1))
    return float(loss.detach())

kind, when = os.environ.get(f"FAULT_{rank}", "none 0").split()
step = 0
while step < 1500:
    for x in DataLoader(torch.ones(400, 16), batch_size=4):
        if step == int(when):
            if kind == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if kind == "raise":
                raise ValueError("chaos")
            if kind == "leave":
                sys.exit(3)
            if kind == "sleep":
                time.sleep(3)
        if chance.random() < 0.02:
            time.sleep(chance.random() / 20)
        optimizer.zero_grad()
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
        describe(loss)
        step += 1
        if step % 5 == 0:
            evaluate()
"""


@dataclass(frozen=True)
class Run:
    """What one run came to."""

    seed: int
    faults: dict[int, tuple[str, int]]
    ranks: int
    codes: dict[int, int | None]  # None: it had to be killed
    speakers: tuple[int, ...]
    said: str
    seconds: float

    @property
    def wrong(self) -> str:
        hung = [rank for rank, code in self.codes.items() if code is None]
        living = [rank for rank, code in self.codes.items() if code != 128 + signal.SIGKILL]
        if hung:
            return f"ranks {hung} did not end"
        if living and min(living) not in self.speakers:
            return f"rank {min(living)} said nothing"
        return ""


def run(seed: int) -> Run:
    chance = random.Random(seed)
    ranks = chance.choice((2, 4))
    chosen = chance.sample(range(ranks), chance.choice((1, 1, ranks // 2)))
    faults = {rank: (chance.choice(KINDS), chance.choice(STEPS)) for rank in chosen}
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "train.py"
        script.write_text(SCRIPT)
        port, began = find_free_port(), time.monotonic()
        places = {rank: f"{rank} {ranks} {port}" for rank in range(ranks)}
        processes = {
            _start(script, rank, place, seed, faults): rank for rank, place in places.items()
        }
        codes = _wait(processes)
        heard = {rank: (script.parent / f"{rank}.err").read_text() for rank in range(ranks)}
    told = {rank: found[0] for rank, text in heard.items() if (found := VERDICT.findall(text))}
    said = next(iter(told.values()), "")
    return Run(seed, faults, ranks, codes, tuple(told), said, time.monotonic() - began)


def _start(
    script: Path, rank: int, place: str, seed: int, faults: dict[int, tuple[str, int]]
) -> int:
    """Forked: torch is loaded once for all runs."""
    process = os.fork()
    if process:
        return process
    code = 99
    try:
        _, ranks, port = place.split()
        os.environ.update(RANK=str(rank), WORLD_SIZE=ranks, MASTER_PORT=port, SEED=str(seed))
        os.environ.update(MASTER_ADDR="127.0.0.1", OMP_NUM_THREADS="1")
        os.environ.update({f"FAULT_{each}": f"{a} {b}" for each, (a, b) in faults.items()})
        for stream, name in ((1, "out"), (2, "err")):
            file = os.open(script.parent / f"{rank}.{name}", os.O_WRONLY | os.O_CREAT)
            os.dup2(file, stream)
        code = main(["script", "--seconds", "2", "--steps", "60", "--warmup", "2", str(script)])
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _wait(processes: dict[int, int]) -> dict[int, int | None]:
    codes: dict[int, int | None] = {}
    until = time.monotonic() + LONGEST_SECONDS
    while len(codes) < len(processes):
        for process, rank in processes.items():
            if rank in codes:
                continue
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                codes[rank] = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > until:
                os.kill(process, signal.SIGKILL)
                os.waitpid(process, 0)
                codes[rank] = None
        time.sleep(0.02)
    return codes


if __name__ == "__main__":
    count, first = (int(each) for each in [*sys.argv[1:], *("5", "0")[len(sys.argv) - 1 :]])
    runs = []
    for each in range(first, first + count):
        done = run(each)
        runs.append(done)
        print(done.wrong or "ok", done, flush=True)
    wrong = [each for each in runs if each.wrong]
    print(f"{len(runs) - len(wrong)} of {len(runs)} right")
    sys.exit(bool(wrong))
