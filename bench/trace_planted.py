"""How often does a trace alone show the cause of a planted script? Profile each, then ask `trace`.

    python -m bench.trace_planted [--traces DIR] [NAME ...]
    PYTHONPATH=$(make -s fakegpu) TORCH_DEVICE_BACKEND_AUTOLOAD=1 \\
        python -m bench.trace_planted --simulated [NAME ...]

Every script runs under torch.profiler for a few steps, on the CPU or on the simulated device;
nothing but the file is read. Prints a table. On the simulated device, `--truth` also runs both
twins without a profiler, and says what the repair is worth by the device's own clock.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.kept import row, table
from bench.planted.truth import CASES
from bench.planted_async.run import measure
from bench.planted_async.truth import CASES as SIMULATED
from bench.planted_async.truth import Timed
from diagnose.measure.twins.cases import Case

ROOT = Path(__file__).parents[1]
LIMIT_SECONDS = 180
# What no file of times can show: values that come out the same, another batch or precision that
# was not run, what an allocator would do otherwise.
UNSHOWN = ("recompute", "batch", "allocation")
UNSHOWN_CASES = ("precision_autocast",)


def is_shown(case: Case) -> bool:
    hidden = any(each.cause in UNSHOWN for each in case.culprits)
    return not hidden and case.name not in UNSHOWN_CASES and case.ranks == 1


def ask(case: Case, trace: Path, environment: dict[str, str]) -> dict[str, Any]:
    """What `trace` answers; a trace that is there is not made again."""
    if not trace.exists():
        _run(["bench.traced", str(case.slow), str(trace)], environment)
    answer: dict[str, Any] = json.loads(_run(["diagnose", "trace", "--json", "-", str(trace)]))
    return answer


def _run(words: list[str], environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *words],
        cwd=ROOT, env={**os.environ, **(environment or {})}, capture_output=True, text=True,
        timeout=LIMIT_SECONDS, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(done.stderr[-300:])
    return done.stdout


def cases(simulated: bool) -> Iterator[tuple[Case, Timed | None]]:
    if simulated:
        yield from ((timed.case, timed) for timed in SIMULATED)
    else:
        yield from ((case, None) for case in CASES)


def main() -> int:
    parser = argparse.ArgumentParser(description="Judge `trace` on the planted scripts.")
    parser.add_argument("--traces", type=Path, help="keep them there, and use those that are there")
    parser.add_argument("--simulated", action="store_true", help="bench/planted_async instead")
    parser.add_argument("--truth", action="store_true", help="measure what the repair is worth")
    parser.add_argument("names", nargs="*", help="(default: all that a trace can show)")
    arguments = parser.parse_args()
    right = total = 0
    titles = "<script", "<cause", "<found first", ">at most", ">repair gives", ">device busy"
    print(*table((*titles, "<right"), ()), sep="\n")
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.traces or Path(temporary)
        for case, timed in cases(arguments.simulated):
            if not is_shown(case) or (arguments.names and case.name not in arguments.names):
                continue
            wanted = [each.cause for each in case.culprits] or ["compute"]
            environment = {"FAKEGPU_PROFILE": timed.profile} if timed is not None else {}
            most = gives = busy = ""
            try:
                told = ask(case, folder / f"{case.name}.json", environment)
                if arguments.truth and timed is not None:
                    gives = f"{measure(timed, os.environ).gain_share:.0%}"
            except (RuntimeError, subprocess.TimeoutExpired, ValueError) as error:
                first, is_right = f"failed: {error}", False
            else:
                found, share = told["findings"][0], told["step_busy_share"]
                is_right = found["cause"] in wanted
                first = f"{found['cause']} in {found['function']}"
                most = f"{found['gain_ci'][1] / told['step_ms']['mean']:.0%}"
                busy = f"{share:.0%}" if share is not None else ""
            total += 1
            right += is_right
            cells = (case.name, ", ".join(wanted), first, most, gives, busy)
            print(row((*cells, "yes" if is_right else "NO")), flush=True)
    print(f"\n{right} of {total} causes ({right / max(1, total):.0%})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
