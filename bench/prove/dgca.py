"""Is DGCA's vectorized form faster than its loops? Two commits of this repository, proven.

    python -m bench.prove.dgca --label cpu-dgca-prove

The first commit trains by default as the job was found, the second with every proven optimization;
nothing else differs. Both are children of HEAD, made without touching the working tree, and their
names are gone afterwards; the record has their hashes. Further options go to `diagnose prove`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FILE = "bench/dgca/arguments.py"
OPTIMIZED, AS_FOUND = 'default="optimised"', 'default="original"'
LOOP, VECTORIZED = "dgca/loop", "dgca/vectorized"
SIZE = ("--size", "small")
TRAIN = ("--do-train", "--apply-prompt", "--mft", "--train-batch-size", "16", "--device", "cpu")
# The same author at the same time gives the same hashes for the same files.
STAMP = {
    f"GIT_{who}_{what}": value
    for who in ("AUTHOR", "COMMITTER")
    for what, value in (
        ("NAME", "torch-diagnose"),
        ("EMAIL", "torch-diagnose@example.org"),
        ("DATE", "2026-01-01T00:00:00Z"),
    )
}


def git(*words: str, given: str | None = None, **variables: str) -> str:
    done = subprocess.run(
        ["git", *words],
        cwd=ROOT,
        env={**os.environ, **STAMP, **variables},
        input=given,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if done.returncode:
        sys.exit(f"git {words[0]}: {done.stderr.strip()}")
    return done.stdout.strip()


@contextmanager
def two_commits(folder: Path) -> Iterator[None]:
    """`dgca/loop` and `dgca/vectorized`, as long as the block lasts."""
    text = git("show", f"HEAD:{FILE}") + "\n"
    if text.count(OPTIMIZED) != 1:
        sys.exit(f"{FILE} has no {OPTIMIZED}")
    blob = git("hash-object", "-w", "--stdin", given=text.replace(OPTIMIZED, AS_FOUND))
    index = {"GIT_INDEX_FILE": str(folder / "index")}
    git("read-tree", "HEAD", **index)
    git("update-index", "--cacheinfo", f"100644,{blob},{FILE}", **index)
    parent = git("rev-parse", "HEAD")
    commits = {}
    for name, tree in ((LOOP, git("write-tree", **index)), (VECTORIZED, "HEAD^{tree}")):
        commits[name] = parent = git("commit-tree", tree, "-p", parent, "-m", name)
    try:
        for name, commit in commits.items():
            git("update-ref", f"refs/{name}", commit)
        yield
    finally:
        for name in commits:
            git("update-ref", "-d", f"refs/{name}")


def main() -> int:
    python = sys.executable
    with tempfile.TemporaryDirectory() as name, two_commits(Path(name)):
        data = [python, "-m", "bench.dgca.preprocess", "--output", name, *SIZE]
        subprocess.run(data, cwd=ROOT, check=True, timeout=600, stdout=sys.stderr)
        words = [python, "-m", "diagnose", "prove", LOOP, VECTORIZED, *sys.argv[1:]]
        script = ["bench/dgca/train.py", *TRAIN, *SIZE, "--epochs", "1000"]
        script += ["--preprocessed-train", f"{name}/train.pt", "--output", f"{name}/runs"]
        return subprocess.run([*words, "--", *script], cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
