"""What does `diagnose prove` say of pairs whose truth is known? Goes on where it was interrupted.

    python -m bench.prove.pairs --kind planted             # every slow script against its repair
    python -m bench.prove.pairs --kind sabotaged           # twins that compute something else
    python -m bench.prove.pairs --kind equal --runs 200    # planted scripts against themselves

Every answer is kept in reports/prove_pairs.json as soon as it is there; the page beside it is made
of it. Equal pairs may run beside each other, each on cores of its own (--jobs): a neighbor is no
excuse.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from queue import Queue
from typing import Any, NamedTuple

from bench.kept import REPORTS, ROOT, table
from bench.planted.truth import CASES
from bench.prove.rule import share_interval
from diagnose.commands.shared.arguments import count, positive
from diagnose.measure.machine.describe import read_commit
from diagnose.measure.twins.cases import Case, find_lines, fixed_script

HERE = Path(__file__).resolve().parent
TRAIN = HERE / "sabotage" / "train.py"
TIMEOUT_SECONDS = 900
LINES_OFF = 2  # as `accuracy` judges: the same statement or its neighbor


class Sabotage(NamedTuple):
    """What is changed in the small script, and the first step that must differ."""

    name: str
    old: str
    new: str
    step: int | None  # None: a change that only rounds


SABOTAGES = (
    Sabotage("wrong mask", "< lengths[:, None]", "<= lengths[:, None]", 1),
    Sabotage("dropped term", "        loss = loss + 1e-3 * scores.square().mean()\n", "", 1),
    Sabotage("skipped batch", "    place += 16", "    place += 32 if step == 7 else 16", 9),
    Sabotage("changed seed", "manual_seed(0)", "manual_seed(1)", 1),
    # As published: the places of the first row, for all rows.
    Sabotage(
        "index_copy_ of one row",
        "        for row in range(len(tokens)):\n"
        "            tokens[row, places[row]] = self.prompts\n",
        "        tokens.index_copy_(1, places[0], self.prompts.expand(len(tokens), 2, WIDTH))\n",
        1,
    ),
    # What a no_sync around the wrong half does: only the last part's gradients count.
    Sabotage(
        "lost gradients",
        "    for part in rows.chunk(2):\n",
        "    for part in rows.chunk(2):\n        optimizer.zero_grad()\n",
        1,
    ),
    Sabotage(
        "another order of a sum",
        "hidden.sum(1)",
        "(hidden[:, ::2].sum(1) + hidden[:, 1::2].sum(1))",
        None,
    ),
)


class Pair(NamedTuple):
    """Two scripts, and what is expected of them."""

    name: str
    before: Path
    after: Path
    judge: Callable[[dict[str, Any]], dict[str, bool]]


def planted_pairs(folder: Path) -> Iterator[Pair]:
    for case in CASES:
        if case.ranks == 1 and case.repair.exists():
            slow, fixed = _copied(case, folder), fixed_script(case, folder / "after")
            yield Pair(case.name, slow, fixed, partial(judge_planted, case))


def _copied(case: Case, folder: Path) -> Path:
    """Outside this repository, so that only the script's own folder has to be copied."""
    home = folder / "before" / case.name
    shutil.copytree(
        case.directory,
        home,
        ignore=shutil.ignore_patterns("__pycache__", case.repair.name),
        dirs_exist_ok=True,
    )
    return home / case.slow.name


def judge_planted(case: Case, said: dict[str, Any]) -> dict[str, bool]:
    verdict, equal = said["speed"]["verdict"], said["equality"]["verdict"]
    found = {"speed": verdict in (("SAME", "INCONCLUSIVE") if case.is_healthy else ("FASTER",))}
    if case.tolerance is not None:
        found["results"] = equal in ("EQUAL", "EQUAL WITHIN ROUNDING")
    if not case.is_healthy:
        marks = {(each.file, n) for each in case.culprits for n in find_lines(case, each)}
        named = [each for each in said["lines"] if each["before_ms"] > each["after_ms"]][:1]
        for what, is_there in (("line", _is_line), ("edit", _is_edit)):
            found[what] = any(
                each["file"] == file and is_there(each, line)
                for each in named
                for file, line in marks
            )
    return found


def _is_line(named: dict[str, Any], line: int) -> bool:
    return bool(abs(named["line"] - line) <= LINES_OFF)


def _is_edit(named: dict[str, Any], line: int) -> bool:
    """The line itself, or another of the lines that were exchanged together with it."""
    first, last = named.get("edit") or (named["line"], named["line"])
    return bool(first <= line <= last)


def sabotaged_pairs(folder: Path) -> Iterator[Pair]:
    text = TRAIN.read_text(encoding="utf-8")
    before = folder / TRAIN.name
    before.write_text(text, encoding="utf-8")
    for each in SABOTAGES:
        assert text.count(each.old) == 1, each.name
        path = folder / f"{each.name.replace(' ', '_')}.py"
        path.write_text(text.replace(each.old, each.new), encoding="utf-8")
        yield Pair(each.name, before, path, partial(judge_sabotage, each))


def judge_sabotage(sabotage: Sabotage, said: dict[str, Any]) -> dict[str, bool]:
    equality = said["equality"]
    if sabotage.step is None:
        return {"results": equality["verdict"] == "EQUAL WITHIN ROUNDING"}
    return {"results": equality["step"] == sabotage.step}


def equal_pairs(folder: Path, runs: int) -> Iterator[Pair]:
    scripts = [case for case in CASES if case.ranks == 1]
    for number in range(runs):
        case = scripts[number % len(scripts)]
        slow = _copied(case, folder)
        yield Pair(f"{case.name} {number // len(scripts) + 1}", slow, slow, judge_equal)


def judge_equal(said: dict[str, Any]) -> dict[str, bool]:
    return {
        "speed": said["speed"]["verdict"] in ("SAME", "INCONCLUSIVE"),
        "results": said["equality"]["verdict"] in ("EQUAL", "EQUAL WITHIN ROUNDING"),
    }


def ask(pair: Pair, options: Sequence[str], cores: Collection[int]) -> dict[str, Any]:
    """What is said of a pair, in short; a pair that could not be asked is wrong."""
    began = time.monotonic()
    words = [sys.executable, "-m", "diagnose", "prove", pair.before.name, str(pair.after)]
    running = subprocess.Popen(
        [*words, "--json", "-", *options],
        cwd=pair.before.parent,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        preexec_fn=lambda: os.sched_setaffinity(0, cores),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        out, errors = running.communicate(timeout=TIMEOUT_SECONDS)
        if running.returncode == 130:
            raise KeyboardInterrupt
    except subprocess.TimeoutExpired:
        running.send_signal(signal.SIGINT)  # it ends its processes, as nobody else could
        out, errors = running.communicate()
    found: dict[str, Any] = {"right": {"speed": False}, **dict.fromkeys(COLUMNS, "")}
    if out:
        found = shorten(pair, json.loads(out))
    last = (errors.strip().splitlines() or [""])[-1] if running.returncode else ""
    return {
        **found,
        "failed": last,
        "seconds": round(time.monotonic() - began, 1),
    }


COLUMNS = ("speed", "ratio", "results", "line")


def write_page(kept: dict[str, dict[str, Any]]) -> str:
    lines = ["# What does `diagnose prove` say of pairs whose truth is known?", ""]
    lines.append("Written by `python -m bench.prove.pairs`.")
    for kind, pairs in kept.items():
        answers = list(pairs.values())
        asked = []
        for what in ("speed", "results", "line", "edit"):
            right = [each["right"][what] for each in answers if what in each["right"]]
            if right:
                share = share_interval(sum(right), len(right))
                asked.append((what, f"{sum(right)} of {len(right)}: {share}"))
        lines += ["", f"## {kind.capitalize()}", "", *table(("<asked", ">right"), asked)]
        verdicts = Counter(each["speed"] for each in answers)
        counted = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.most_common())
        blocks = statistics.median(each.get("blocks", 0) for each in answers)
        seconds = statistics.median(each.get("seconds", 0.0) for each in answers)
        commits = ", ".join(sorted({each.get("commit", "unknown") for each in answers}))
        lines += [
            "",
            f"{counted}; at the median {blocks:g} blocks and {seconds:.0f} s for a pair; "
            f"commit {commits}.",
        ]
        shown = [
            (name, each)
            for name, each in pairs.items()
            if kind != "equal" or not all(each["right"].values())
        ]
        rows = []
        for name, each in shown:
            wrong = ", ".join(what for what, right in each["right"].items() if not right)
            wrong = "; ".join(filter(None, (wrong, each.get("failed", ""))))
            rows.append((name, *(each[column] for column in COLUMNS), wrong))
        if rows:
            titles = "<pair", "<speed", ">ratio", "<results", "<line", "<wrong"
            lines += ["", *table(titles, rows)]
    return "\n".join(lines) + "\n"


def shorten(pair: Pair, said: dict[str, Any]) -> dict[str, Any]:
    speed, equality, lines = said["speed"], said["equality"], said["lines"]
    ratio = "" if speed["ratio"] is None else f"{speed['ratio']:.3f}"
    if speed["ratio_ci"]:
        ratio += " [{:.3f}, {:.3f}]".format(*speed["ratio_ci"])
    step = equality["step"]
    return {
        "right": pair.judge(said),
        "speed": speed["verdict"],
        "ratio": ratio,
        "blocks": speed["blocks"],
        "results": f"DIVERGES AT STEP {step}" if step else equality["verdict"],
        "line": f"`{Path(lines[0]['file']).name}:{lines[0]['line']}`" if lines else "",
    }


def ask_all(
    pairs: Iterable[Pair], options: Sequence[str], jobs: int
) -> Iterator[tuple[str, dict[str, Any]]]:
    """So many at a time, each on its share of the cores."""
    cores = sorted(os.sched_getaffinity(0))
    shares: Queue[list[int]] = Queue()
    for number in range(jobs):
        shares.put(cores[number::jobs])

    def ask_one(pair: Pair) -> tuple[str, dict[str, Any]]:
        share = shares.get()
        try:
            return pair.name, ask(pair, options, share)
        finally:
            shares.put(share)

    with ThreadPoolExecutor(jobs) as pool:
        futures = [pool.submit(ask_one, each) for each in pairs]
        try:
            for future in as_completed(futures):
                yield future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=("planted", "sabotaged", "equal"), default="planted")
    parser.add_argument("--only", nargs="+", default=[], metavar="PART")
    parser.add_argument("--runs", type=count, default=200, metavar="N", help="of equal pairs")
    add = parser.add_argument
    add("--seconds", type=positive, default=30.0, help="that each pair is timed at most")
    add("--jobs", type=count, default=1, metavar="N", help="pairs at a time, on cores of their own")
    parser.add_argument("--again", action="store_true", help="forget the answers of this kind")
    parser.add_argument("--output", type=Path, default=REPORTS / "prove_pairs.json")
    options = parser.parse_args(words)
    exists = options.output.exists()
    kept = json.loads(options.output.read_text(encoding="utf-8")) if exists else {}
    if options.again:
        kept.pop(options.kind, None)
    known = kept.setdefault(options.kind, {})
    with tempfile.TemporaryDirectory() as folder:
        pairs = {
            "planted": lambda: planted_pairs(Path(folder)),
            "sabotaged": lambda: sabotaged_pairs(Path(folder)),
            "equal": lambda: equal_pairs(Path(folder), options.runs),
        }[options.kind]()
        wanted = [
            pair
            for pair in pairs
            if pair.name not in known
            and (not options.only or any(part in pair.name for part in options.only))
        ]
        # Before the answers are written, which are in a file of this commit.
        commit = read_commit(ROOT).value or "unknown"
        named = commit[:12] + "-dirty" * commit.endswith("-dirty")
        for name, answer in ask_all(wanted, ["--seconds", f"{options.seconds:g}"], options.jobs):
            known[name] = {**answer, "commit": named}
            options.output.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
            page = options.output.with_suffix(".md")
            page.write_text(write_page(kept), encoding="utf-8")
            print(name, answer, flush=True)


if __name__ == "__main__":
    main()
