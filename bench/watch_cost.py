"""What does watching cost a job? Plain and watched runs of one job, in random order.

`python -m bench.watch_cost [--pairs N] [--device KIND]`, alone on the machine. Compared are all
steps but the longest (in a watched run that is the one in which the verdict is told): their time,
what all threads of the process take from the processor meanwhile (which neighbours disturb less),
and peak memory. On the simulated device (docs/gpu.md) the clock is the one that it is simulated by.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from diagnose.commands.shared.arguments import count
from diagnose.records.stats import log_ratio_interval

ROOT = Path(__file__).parents[1]
PAIRS = 8
SECONDS = 10  # of watching; the job takes about twice as long on a slow core
STEPS = 800
JOB = """
import json, resource, sys, time
import torch

torch.manual_seed(0)
device = sys.argv[3]
layer = torch.nn.TransformerEncoderLayer(128, 4, 512, batch_first=True)
model = torch.nn.Sequential(torch.nn.TransformerEncoder(layer, 4), torch.nn.Linear(128, 10))
model.to(device)
optimizer = torch.optim.AdamW(model.parameters())
data = torch.utils.data.TensorDataset(torch.randn(4000, 32, 128), torch.randint(0, 10, (4000, 32)))
def now():
    return time.perf_counter(), time.process_time()
times, began = [], now()
while len(times) < int(sys.argv[2]):
    for x, y in torch.utils.data.DataLoader(data, batch_size=8, shuffle=True):
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
        loss.backward()
        optimizer.step()
        times.append([after - before for after, before in zip(now(), began)])
        began = now()
        if len(times) == int(sys.argv[2]):
            break
times = sorted(times[5:])[:-1]
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
seconds, busy = (sum(each) / len(times) for each in zip(*times))
found = {"seconds": seconds, "busy": busy, "megabytes": peak}
json.dump(found, open(sys.argv[1], "w"))
"""


def run(folder: Path, device: str, *, watched: bool) -> dict[str, float]:
    found = folder / "found.json"
    watch = ["-m", "diagnose", "watch", "--seconds", str(SECONDS)] if watched else []
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    subprocess.run(
        [sys.executable, *watch, str(folder / "job.py"), str(found), str(STEPS), device],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
        stderr=subprocess.DEVNULL,
        check=True,
    )
    told: dict[str, float] = json.loads(found.read_text())
    return told


def main() -> None:
    parser = argparse.ArgumentParser(prog="watch_cost", description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=count, default=PAIRS, metavar="N")
    parser.add_argument("--device", default="cpu", metavar="KIND")
    options = parser.parse_args()
    pairs = options.pairs
    order = random.Random(0)
    plain: list[dict[str, float]] = []
    watched: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "job.py").write_text(JOB)
        for pair in range(pairs):
            for is_watched in order.sample([False, True], 2):
                found = run(folder, options.device, watched=is_watched)
                (watched if is_watched else plain).append(found)
            print(f"pair {pair + 1}: {plain[-1]} plain, {watched[-1]} watched", flush=True)
    for what, words in (("seconds", "a step is"), ("busy", "in processor time it is")):
        ratio = log_ratio_interval([each[what] for each in watched], [each[what] for each in plain])
        low, high = ratio.ends or (ratio.center, ratio.center)
        print(f"{words} {100 * ratio.center:.2f} [{100 * low:.2f}, {100 * high:.2f}] % slower")
    grown = [w["megabytes"] - p["megabytes"] for w, p in zip(watched, plain, strict=True)]
    print(f"peak memory: {sorted(grown)[pairs // 2]:+.0f} MB at the median")


if __name__ == "__main__":
    main()
