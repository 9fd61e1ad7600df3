"""How often does a trace alone show the cause of a planted script? Profile each, then ask `trace`.

python -m bench.trace_planted [--traces DIR] [NAME ...]

Every script runs under torch.profiler on the CPU for a few steps; nothing but the file is read.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.planted.truth import CASES
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


def judge(case: Case, folder: Path) -> tuple[bool, list[str], str]:
    """Whether the first finding is right, all causes that were named, and the line of the first."""
    trace = folder / f"{case.name}.json"
    script = ROOT / "bench" / "planted" / case.name / "slow.py"
    command = [sys.executable, "-m", "diagnose.measure.trace.keep", str(script), str(trace)]
    if not trace.exists():
        run(command)
    told = run([sys.executable, "-m", "diagnose", "trace", "--json", "-", str(trace)])
    findings = json.loads(told)["findings"]
    causes = [each["cause"] for each in findings]
    wanted = [each.cause for each in case.culprits] or ["compute"]
    where = f"{findings[0]['file']}:{findings[0]['line']} in {findings[0]['function']}"
    return causes[0] in wanted, causes, where


def run(command: list[str]) -> str:
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-300:])
    return done.stdout


def main() -> int:
    parser = argparse.ArgumentParser(description="Judge `trace` on the planted scripts.")
    parser.add_argument("--traces", type=Path, help="keep them there, and use those that are there")
    parser.add_argument("names", nargs="*", help="(default: all that a trace can show)")
    arguments = parser.parse_args()
    names = arguments.names
    right = total = 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.traces or Path(temporary)
        for case in CASES:
            if not is_shown(case) or (names and case.name not in names):
                continue
            total += 1
            try:
                good, causes, where = judge(case, folder)
            except (RuntimeError, subprocess.TimeoutExpired, ValueError) as error:
                good, causes, where = False, [], f"failed: {error}"
            right += good
            print(f"{'yes' if good else 'NO ':3} {case.name:24} {', '.join(causes)} {where}")
            sys.stdout.flush()
    print(f"{right} of {total} causes ({right / max(1, total):.0%})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
