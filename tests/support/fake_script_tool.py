"""A stand-in for `python -m diagnose script`: answers at once, as its environment tells it to."""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--json", type=Path)
parser.add_argument("--seconds", type=float)
parser.add_argument("script", type=Path)
parser.add_argument("--steps", type=int)  # the script's own
arguments = parser.parse_args()

# What is said of each script by the name of its directory, and "*" of any other.
told = json.loads(os.environ["FAKE_TOOL"])
said = told.get(arguments.script.parent.name, told.get("*"))
if said == "sleep":
    time.sleep(600)
if said == "silence":
    raise SystemExit("no steps were seen")
if said == "nonsense":
    arguments.json.write_text('{"schema": 2, "sentence": "half an ans')
    raise SystemExit(0)

finding = {
    "cause": said["cause"],
    "file": str(arguments.script.parent / said.get("file", "slow.py")),
    "line": said.get("line", 1),
    "function": "main",
    "gain_ms": said.get("gain_ms", 0.0),
    "gain_ci": said.get("gain_ci", [0.0, 2 * said.get("gain_ms", 0.0)]),
    "share": 0.5,
    "verified": True,
    "evidence": "none",
    "advice": "none",
}
answer = {
    "schema": 2,
    "sentence": f"the script {arguments.script} waits",
    "step_ms": {"mean": 50.0, "median": 50.0, "low": 49.0, "high": 51.0},
    "steps": arguments.steps or int(os.environ.get("STEPS", 100)),
    "overhead": {"share": 0.002},
    "phases": {"forward": 50.0},
    "findings": [finding],
    "excluded": [],
    "cannot_tell": [],
}
arguments.json.write_text(json.dumps(answer))
