"""Does a diagnosis depend on how the machine is set? The same planted scripts under each setting.

    python -m bench.settings
    python -m bench.settings --only "one thread" --seconds 20

Alone on the machine, about half an hour for each setting; what is judged already is left out.
Each script is timed against its repaired twin under the same setting: what costs nothing there is
not counted. The page beside this file says what each setting changed.
"""

from __future__ import annotations

import argparse
import csv
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.kept import ROOT, table
from diagnose.commands.shared.arguments import add_seconds

SAMPLE = (
    "allocation_volume", "batch_small", "evaluation_often", "growth_history", "host_audit",
    "host_dashboard", "input_collate", "input_thumbnails", "launch_noising", "launch_positions",
    "optimizer_paper", "precision_double", "recompute_prompts", "sync_gan", "transfer_scans",
    "compute_bert", "compute_charlm", "compute_inference", "compute_no_workers", "compute_plain",
)  # fmt: skip
BLOCKS = "6"
USUAL = "as it is"
PAGE = ROOT / "bench" / "settings.md"
BUSY = "while True: pass"
Row = dict[str, str]  # of the table of all scripts


@dataclass(frozen=True)
class Setting:
    """How the machine is set for all processes of a run."""

    name: str
    variables: Mapping[str, str] = field(default_factory=dict)
    is_starved: bool = False  # one core, and not alone on it

    @property
    def label(self) -> str:
        return f"accuracy-{self.name.replace(' ', '-')}"


SETTINGS = (
    Setting(USUAL),
    Setting("one thread", {"OMP_NUM_THREADS": "1"}),
    Setting("one shared core", is_starved=True),
    # Where the processor has instructions for bfloat16, oneDNN may use none of them.
    Setting("slow bfloat16", {"ONEDNN_MAX_CPU_ISA": "AVX2"}),
)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="settings", description=__doc__.splitlines()[0])
    names = [each.name for each in SETTINGS]
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="SETTING")
    add_seconds(parser, "--seconds", "time budget of the tool for one script", 20.0)
    parser.add_argument("--reports", type=Path, default=Path(tempfile.gettempdir()) / "settings")
    options = parser.parse_args(words)
    for each in SETTINGS:
        if each.name in options.only:
            measure(each, options.reports, options.seconds)
    found = {each.name: read(each, options.reports) for each in SETTINGS}
    page = write_page({name: cases for name, cases in found.items() if cases})
    PAGE.write_text(page, encoding="utf-8")
    print(page)
    return 0


def measure(setting: Setting, reports: Path, seconds: float) -> None:
    words = [sys.executable, "-m", "diagnose", "accuracy", "--resume", "--only", *SAMPLE]
    words += ["--label", setting.label, "--reports", str(reports), "--blocks", BLOCKS]
    words += ["--seconds", f"{seconds:g}"]
    with _neighbor() if setting.is_starved else _nobody() as prefix:
        environment = {**os.environ, **setting.variables}
        subprocess.run([*prefix, *words], cwd=ROOT, env=environment, check=False)


@contextmanager
def _neighbor() -> Iterator[list[str]]:
    pinned = ["taskset", "--cpu-list", str(min(os.sched_getaffinity(0)))]
    with subprocess.Popen([*pinned, sys.executable, "-c", BUSY]) as busy:
        try:
            yield pinned
        finally:
            busy.kill()


@contextmanager
def _nobody() -> Iterator[list[str]]:
    yield []


def read(setting: Setting, reports: Path) -> dict[str, Row]:
    """What the report says of each script."""
    if not (reports / setting.label / "accuracy.json").exists():
        return {}
    with tempfile.TemporaryDirectory() as tables:
        words = ["report", "--reports", str(reports), "--csv", tables, setting.label]
        subprocess.run(
            [sys.executable, "-m", "diagnose", *words], cwd=ROOT, stdout=subprocess.PIPE, check=True
        )
        with (Path(tables) / setting.label / "accuracy-every-script.csv").open() as file:
            return {each["script"].strip("`"): each for each in csv.DictReader(file)}


def write_page(found: Mapping[str, Mapping[str, Row]]) -> str:
    """How many are right under each setting, and every script about which they do not agree."""
    lines = ["# Does a diagnosis depend on how the machine is set?\n"]
    lines += ["Written by `python -m bench.settings`.\n"]
    rows: list[tuple[object, ...]] = []
    for name, cases in found.items():
        verdicts = Counter(each["verdict"] for each in cases.values())
        asked = len(cases) - verdicts["not counted"]
        causes = asked - verdicts["wrong cause"] - verdicts["false alarm"]
        right = [f"{each} of {asked}" for each in (verdicts["right"], causes)]
        rows.append((name, *right, verdicts["false alarm"], verdicts["not counted"]))
    titles = (">right", ">cause right", ">healthy, called sick", ">costs nothing there")
    lines += table(("<setting", *titles), rows)
    names = sorted({name for cases in found.values() for name in cases})
    told = {name: [_say(cases.get(name)) for cases in found.values()] for name in names}
    changed = {name: words for name, words in told.items() if len(set(words)) > 1}
    if not changed:
        return "\n".join([*lines, "\nAll settings agree about every script.\n"])
    lines += ["\nWhat was said of the scripts about which they do not agree:\n"]
    scripts = ("<script", *(f"<{name}" for name in found))
    lines += table(scripts, ((name, *words) for name, words in changed.items()))
    return "\n".join(lines) + "\n"


def _say(row: Row | None) -> str:
    if row is None:
        return "not asked"
    if row["verdict"] == "not counted":
        return "costs nothing here"
    cause = row["said"].split(",")[0]
    return cause if row["verdict"] == "right" else f"**{cause}** ({row['verdict']})"


if __name__ == "__main__":
    sys.exit(main())
