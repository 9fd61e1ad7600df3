"""How fast are `evaluate` and `profile-accuracy` by batch size and by cap of image tiles?

    python -m bench.evaluated

Each runs as its user runs it, on the built-in model of random weights: the scores say nothing about
a trained model, only that they do not depend on the batch. What is done is kept; the same command
goes on where an earlier one was ended.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.kept import REPORTS, ROOT, Entry, Kept, Page, Settings, add_allow_dirty, table
from diagnose.commands.shared.arguments import count

FILE = REPORTS / "evaluated.json"
BATCHES = (1, 2, 4, 8, 16)
CAPS = (1, 4, 12)
TOKENS = 16  # of an answer; without a limit random weights hardly ever end one
LIMIT_SECONDS = 600.0
# Of a result, with the words of the page.
SHOWN = {
    "samples_per_second": "samples/s",
    "duration": "s",
    "score": "score",
    "fallbacks": "fallbacks",
}


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="evaluated", description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=count, default=32, metavar="N", help="questions of a run")
    parser.add_argument("--size", default="small", help="of both jobs (default: %(default)s)")
    parser.add_argument("--output", type=Path, default=FILE, metavar="FILE")
    add_allow_dirty(parser)
    options = parser.parse_args(words)
    settings = {"samples": options.samples, "size": options.size, "tokens": TOKENS}
    kept = Kept(options.output, settings, allow_dirty=options.allow_dirty)
    for verb, value in runs()[len(kept.entries) :]:
        kept.add({"verb": verb, "value": value, **measure(verb, value, settings)})
        print(kept.entries[-1], flush=True)
    kept.publish(PAGE)
    return 0


def runs() -> list[tuple[str, int]]:
    return [*(("evaluate", each) for each in BATCHES), *(("profile-accuracy", e) for e in CAPS)]


def measure(verb: str, value: int, settings: Settings) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "out" / "results.json"
        own = ["--batch-size", value, "--output", output.parent]
        if verb == "profile-accuracy":
            own = ["--max-crops-list", value, "--batch-size", BATCHES[-1], "--output", output]
            output.parent.mkdir()
        own += ["--device", "cpu", "--size", settings["size"], "--max-tokens", settings["tokens"]]
        own += ["--num-samples", settings["samples"]]
        subprocess.run(
            [sys.executable, "-m", "diagnose", verb, *map(str, own)],
            cwd=ROOT,
            check=True,
            timeout=LIMIT_SECONDS,
            stdout=sys.stderr,
        )
        found = json.loads(output.read_text(encoding="utf-8"))
    if verb == "evaluate":
        return {
            "samples_per_second": found["samples_per_second"],
            "duration": found["duration"],
            "score": found["metrics"]["exact_match"],
            "fallbacks": len(found["fallbacks"]),
        }
    (row,) = found["summary"]
    return {
        **{name: row[name] for name in ("samples_per_second", "duration", "fallbacks")},
        "score": row["accuracy"],
    }


def answer(settings: Settings, entries: Sequence[Entry]) -> str:
    rows = [
        (f"`{each['verb']}`", _name(each), *(_write(each[name]) for name in SHOWN))
        for each in entries
    ]
    titles = ("<command", "<changed", *(f">{each}" for each in SHOWN.values()))
    told = "One run each, without an interval; the weights are random, so that no score is high."
    return "\n".join([told, "", *table(titles, rows)])


def _name(entry: Entry) -> str:
    option = "--batch-size" if entry["verb"] == "evaluate" else "--max-crops-list"
    return f"`{option} {entry['value']}`"


def _write(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3g}"


PAGE = Page(
    "How fast are `evaluate` and `profile-accuracy` by batch size and by cap of image tiles?",
    "python -m bench.evaluated",
    answer,
)

if __name__ == "__main__":
    sys.exit(main())
