"""How long does a proof take, and what does taking turns cost a step?

    python -m bench.prove.cost

Needs the machine for itself, for about a minute. A step of 100 ms that gains a fifth is proven as a
user would prove it; then a script with hardly any work times its own steps, before, after and as a
side of a proof. Writes what it finds to reports/prove_cost.md.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.kept import REPORTS, ROOT, table

LIMIT_SECONDS, LIMIT_MS = 45.0, 0.2
STEP_SECONDS, GAIN = 0.1, 1.2
SCRIPT = """\
import sys, time
import torch

torch.manual_seed(0)
model = torch.nn.Linear(256, 256)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
batch = torch.randn(256, 256)
units, steps = int(sys.argv[1]), int(sys.argv[2])


def work(count):
    made = batch
    for _ in range(count):
        made = torch.tanh(made @ batch)
    return made


times = []
for step in range(steps):
    optimizer.zero_grad()
    work(UNITS)
    model(batch).square().mean().backward()
    optimizer.step()
    times.append(time.perf_counter())
print(1e3 * (times[-1] - times[len(times) // 5]) / (len(times) - 1 - len(times) // 5))
"""


def run(folder: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    if done.returncode:
        sys.exit(done.stderr)
    return done.stdout


def prove(folder: Path, units: int, *options: str) -> dict[str, Any]:
    words = ("-m", "diagnose", "prove", "before.py", "after.py", "--json", "-", *options)
    found: dict[str, Any] = json.loads(run(folder, *words, "--", str(units), "10000000"))
    return {**found["speed"], "equality": found["equality"]["verdict"]}


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "after.py").write_text(SCRIPT.replace("UNITS", "units"), encoding="utf-8")
        text = SCRIPT.replace("UNITS", f"round({GAIN} * units)")
        (folder / "before.py").write_text(text, encoding="utf-8")
        none, some = (float(run(folder, "after.py", count, "100")) for count in ("0", "100"))
        units = round(100 * (1e3 * STEP_SECONDS / GAIN - none) / (some - none))
        began = time.monotonic()
        speed = prove(folder, units)
        seconds = time.monotonic() - began
        # Before and after, because the machine changes its speed.
        bare = [float(run(folder, "after.py", "0", "4000"))]
        side = prove(folder, 0, "--seconds", "3")
        bare.append(float(run(folder, "after.py", "0", "4000")))
    own = statistics.fmean(bare)
    low, high = speed["ratio_ci"] or (float("nan"), float("nan"))
    said = f"{speed['verdict']}, {speed['ratio']:.3f} [{low:.3f}, {high:.3f}]x"
    said += f" after {speed['blocks']} blocks, results {speed['equality']}"
    rows = [
        (
            f"a step of {speed['before_ms']:.0f} ms that gains a fifth ({said}): the whole command",
            f"{seconds:.0f} s",
            f"{LIMIT_SECONDS:.0f} s",
        ),
        (
            f"a step of {own:.3f} ms ({min(bare):.3f} and {max(bare):.3f}): as a side of a proof "
            "longer by",
            f"{side['before_ms'] - own:.3f} ms",
            f"{LIMIT_MS} ms",
        ),
    ]
    lines = "\n".join(table(("<asked", ">found", ">allowed"), rows))
    page = f"""# How long does a proof take, and what does taking turns cost?

Written by `python -m bench.prove.cost`, alone on {len(os.sched_getaffinity(0))} cores.

{lines}
"""
    (REPORTS / "prove_cost.md").write_text(page, encoding="utf-8")
    print(page)


if __name__ == "__main__":
    main()
