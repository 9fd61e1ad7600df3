"""What does a job's folder hold before a run, and how is it compared with what is there after?"""

from __future__ import annotations

import hashlib
import os
import sqlite3
from pathlib import Path


def fill(folder: Path) -> Path:
    """Files as training scripts leave them, with links, modes and a database."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("best.pt", "last.pt", "epoch-1.pt", "epoch-2.pt", "model.safetensors"):
        (folder / name).write_bytes(name.encode() * 200)
    (folder / "log.csv").write_text("step,loss\n1,0.5\n")
    (folder / "array.bin").write_bytes(bytes(range(256)) * 16)
    (folder / "array.bin").chmod(0o640)
    (folder / "old" / "deep").mkdir(parents=True)
    (folder / "old" / "deep" / "weights.pt").write_bytes(b"old weights")
    (folder / "old" / "notes.txt").write_text("notes")
    (folder / "empty").mkdir(mode=0o750)
    (folder / "latest").symlink_to("last.pt")
    os.link(folder / "best.pt", folder / "best-again.pt")
    with sqlite3.connect(folder / "runs.db") as database:
        database.execute("create table runs (name text)")
    database.close()
    for each in folder.rglob("*"):
        os.utime(each, ns=(10**18, 10**18 + 1), follow_symlinks=False)
    return folder


def look(folder: Path) -> dict[str, tuple[int, int, str]]:
    """Every path with its mode, the time of its last change and its checksum."""
    found = {}
    for each in sorted(folder.rglob("*")):
        name = each.relative_to(folder).as_posix()
        if name.startswith("diagnose-run-"):
            continue
        facts = each.lstat()
        content, changed = "", facts.st_mtime_ns
        if each.is_symlink():
            content = os.readlink(each)
        elif each.is_file():
            content = hashlib.sha256(each.read_bytes()).hexdigest()
        else:
            changed = 0  # a folder changes with every file in it
        found[name] = (facts.st_mode, changed, content)
    return found


def delivered(folder: Path) -> dict[str, bytes]:
    """What the run has written, from the only folder that it left."""
    folders = list(folder.glob("diagnose-run-*"))
    assert len(folders) <= 1, folders
    files = [each for at in folders for each in at.rglob("*") if not each.is_dir()]
    return {each.relative_to(folders[0]).as_posix(): each.read_bytes() for each in files}
