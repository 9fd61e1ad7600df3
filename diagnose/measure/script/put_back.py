"""How are files put back after a run, however it ended? By whoever watches over it, at the end.

Every watcher of a working directory holds a lock on its folder: the last one to leave undoes the
journal from its end. Nobody is left after a crash of them all; then the next one to come does it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from diagnose.measure.script.aside import NAME, Entry, digest, inode, is_in, parse

# Processes of a run that was killed need a moment to go.
LONGEST_GOODBYE_SECONDS = 5.0
POLL_SECONDS = 0.02


@dataclass(frozen=True)
class Restored:
    """What a run has left: nothing, if it changed nothing."""

    files: int = 0
    new: Path | None = None  # where the run's own files are now
    problem: str = ""

    def __bool__(self) -> bool:
        return bool(self.files or self.new or self.problem)


class Watch:
    """Whoever watches over a run. The last one to leave a working directory puts back."""

    def __init__(self, start: Path, keep_new: bool) -> None:
        """OSError if there is no place for the folder. A left-over of a crash is put back."""
        self._start = start
        self._keep_new = keep_new
        self.left_over = Restored()
        spare = Path(tempfile.gettempdir(), f"{NAME}-{os.getuid()}-{digest(str(start))}")
        try:
            self._enter(start / NAME)
        except OSError:  # a read-only directory: elsewhere the script can still write
            self._enter(spare)

    @property
    def new(self) -> Path:
        """Here run trackers write from the start."""
        return self.folder / "new"

    def leave(self) -> Restored | None:
        """Put back, or None if another run is still going on here."""
        with _gate(self.folder):
            fcntl.flock(self._mine, fcntl.LOCK_UN)
            if not _try_lock(self._mine, 0):
                os.close(self._mine)
                return None
            restored = self._put_back()
            if not restored.problem:
                shutil.rmtree(self.folder)
            os.close(self._mine)
            return restored

    def has_changed(self) -> bool:
        return any(True for _ in parse(_read(self.folder / "journal")))

    def _enter(self, folder: Path) -> None:
        self.folder = folder
        with _gate(folder):
            self._mine = os.open(folder / "watchers", os.O_RDWR | os.O_CREAT, 0o600)
            if _try_lock(self._mine, 0):
                self.left_over = self._put_back()
            fcntl.flock(self._mine, fcntl.LOCK_SH)
            self.new.mkdir(exist_ok=True)

    def _put_back(self) -> Restored:
        with open(self.folder / "writers", "ab") as writers:
            _try_lock(writers.fileno(), LONGEST_GOODBYE_SECONDS)
        undo = _Undo(self._start, self.folder, self._keep_new)
        try:
            undo.all(self.folder / "journal")
            for each in self.new.iterdir() if self.new.is_dir() else ():
                undo.deliver(str(each), each.name)
        except OSError as error:
            problem = f"{error.strerror or error} ({error.filename or self._start})"
            return Restored(len(undo.files), undo.target, problem)
        return Restored(len(undo.files), undo.target)


class _Undo:
    """Back to where the run began; after a crash of its own it goes on where it was."""

    def __init__(self, start: Path, folder: Path, keep_new: bool) -> None:
        self._start, self._folder, self._keep_new = start, folder, keep_new
        self.files: set[str] = set()
        self.target: Path | None = None

    def all(self, journal: Path) -> None:
        entries = list(parse(_read(journal)))
        for offset, entry in reversed(entries):
            self._one(entry)
            os.truncate(journal, offset)
        places = {os.path.dirname(entry.other) for _, entry in entries if entry.what == "kept"}
        for place in places - {str(self._folder)}:
            with contextlib.suppress(OSError):  # others still lie there
                os.rmdir(place)

    def _one(self, entry: Entry) -> None:
        path, other = entry.path, entry.other
        if entry.what == "new" and not self._keep_new:
            if entry.inode and inode(path) == entry.inode:
                os.remove(path)  # a second name of a file that is put back
            else:
                self.deliver(path)
        elif entry.what == "kept" and os.path.lexists(other):
            if inode(path) == entry.inode:  # it was to be deleted, and was not
                os.remove(other)
                return
            self.deliver(path)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            os.rename(other, path)
            self.files.add(path)
        elif entry.what == "copied" and os.path.exists(other):
            copy = other + ".run"
            shutil.copy2(path, copy)
            self.deliver(copy, self._name(path))
            shutil.copyfile(other, path)
            with contextlib.suppress(OSError):
                shutil.copystat(other, path)
            os.remove(other)
            self.files.add(path)
        elif entry.what == "moved" and os.path.lexists(other) and inode(path) != entry.inode:
            self.deliver(path)
            os.rename(other, path)
            self.files.add(path)
        elif entry.what == "gone" and inode(path) != entry.inode:
            if not self._keep_new:
                self.deliver(path)
            os.makedirs(path, exist_ok=True)
            self._look(entry)
        elif entry.what == "looks" and os.path.exists(path):
            self._look(entry)

    def _look(self, entry: Entry) -> None:
        os.chmod(entry.path, entry.mode)
        os.utime(entry.path, ns=(entry.times[0], entry.times[1]))

    def deliver(self, path: str, name: str = "") -> None:
        """What the run has made there goes to the folder that is named at the end."""
        if not os.path.lexists(path):
            return
        if self.target is None:
            self.target = _make_folder(self._start, self._folder.parent)
        wanted = self.target / (name or self._name(path))
        place, count = wanted, 1
        while os.path.lexists(place):
            place, count = wanted.with_name(f"{wanted.name}.{count}"), count + 1
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(path, place)

    def _name(self, path: str) -> str:
        inside = is_in(path, str(self._start))
        return os.path.relpath(path, self._start) if inside else f"outside{path}"


def _make_folder(*places: Path) -> Path:
    name = f"diagnose-run-{datetime.now():%Y-%m-%d-%H%M%S}"
    for count in range(1000):
        for place in places:
            folder = place / (f"{name}-{count}" if count else name)
            with contextlib.suppress(OSError):
                folder.mkdir()
                return folder
    raise OSError(errno.EACCES, "no folder can be made for the files of the run", str(places[-1]))


@contextlib.contextmanager
def _gate(folder: Path) -> Iterator[None]:
    """One at a time comes or goes; the folder that is locked is the one that is there."""
    while True:
        folder.mkdir(0o700, exist_ok=True)
        gate = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(gate, fcntl.LOCK_EX)
            if inode(str(folder)) == str(os.fstat(gate).st_ino):
                yield
                return
        finally:
            os.close(gate)


def _try_lock(file: int, seconds: float) -> bool:
    until = time.monotonic() + seconds
    while True:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        if time.monotonic() >= until:
            return False
        time.sleep(POLL_SECONDS)


def _read(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""
