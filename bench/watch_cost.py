"""What does watching cost a job? Plain and watched runs of one job, in random order.

`python -m bench.watch_cost [PAIRS]`, alone on the machine. Compared are all steps but the longest
(in a watched run that is the one in which the verdict is told): their time, what all threads of
the process take from the processor meanwhile (which neighbours disturb less), and peak memory.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from diagnose.records.stats import log_ratio_interval

ROOT = Path(__file__).parents[1]
PAIRS = 8
SECONDS = 10  # of watching; the job takes about twice as long on a slow core
STEPS = 800
JOB = """
import json, resource, sys, time
import torch

torch.manual_seed(0)
layer = torch.nn.TransformerEncoderLayer(128, 4, 512, batch_first=True)
model = torch.nn.Sequential(torch.nn.TransformerEncoder(layer, 4), torch.nn.Linear(128, 10))
optimizer = torch.optim.AdamW(model.parameters())
data = torch.utils.data.TensorDataset(torch.randn(4000, 32, 128), torch.randint(0, 10, (4000, 32)))
def now():
    return time.perf_counter(), time.process_time()
times, began = [], now()
while len(times) < int(sys.argv[2]):
    for x, y in torch.utils.data.DataLoader(data, batch_size=8, shuffle=True):
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


def run(folder: Path, *, watched: bool) -> dict[str, float]:
    found = folder / "found.json"
    watch = ["-m", "diagnose", "watch", "--seconds", str(SECONDS)] if watched else []
    subprocess.run(
        [sys.executable, *watch, str(folder / "job.py"), str(found), str(STEPS)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        stderr=subprocess.DEVNULL,
        check=True,
    )
    told: dict[str, float] = json.loads(found.read_text())
    return told


def main(pairs: int) -> None:
    order = random.Random(0)
    plain: list[dict[str, float]] = []
    watched: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "job.py").write_text(JOB)
        for pair in range(pairs):
            for is_watched in order.sample([False, True], 2):
                (watched if is_watched else plain).append(run(folder, watched=is_watched))
            print(f"pair {pair + 1}: {plain[-1]} plain, {watched[-1]} watched", flush=True)
    for what, words in (("seconds", "a step is"), ("busy", "in processor time it is")):
        ratio = log_ratio_interval([each[what] for each in watched], [each[what] for each in plain])
        low, high = ratio.ends or (ratio.center, ratio.center)
        print(f"{words} {100 * ratio.center:.2f} [{100 * low:.2f}, {100 * high:.2f}] % slower")
    grown = [w["megabytes"] - p["megabytes"] for w, p in zip(watched, plain, strict=True)]
    print(f"peak memory: {sorted(grown)[pairs // 2]:+.0f} MB at the median")


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else PAIRS)
