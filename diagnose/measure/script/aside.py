"""What becomes of the files that a run is about to change? They are set aside, and put back.

A hidden folder in the working directory holds them, with a journal. Before a file is changed,
replaced, renamed or deleted, whoever does it writes a line and moves the file there. The lines,
undone from the last to the first, lead back to where the run began; whoever undoes them needs
nothing of the run, so it may have ended in any way.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import stat
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Literal

NAME = ".diagnose-aside"


@dataclass(frozen=True)
class Entry:
    """One line: what is about to happen to a path."""

    # left: it is new and may stay; kept: it lies in `other` now; copied: a copy of it does;
    # moved: it is called `other` now; gone: an empty folder was there; looks: mode and times.
    what: Literal["new", "left", "kept", "copied", "moved", "gone", "looks"]
    path: str
    other: str = ""
    inode: str = ""
    mode: int = 0
    times: tuple[int, int] = (0, 0)


class Aside:
    """The folder, as a process of the run uses it."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._journal = os.path.join(folder, "journal")
        self._read = 0
        # What the run may do with as it likes; what lies below a path is as that is.
        self._own: dict[str, bool] = {}
        # What is the user's wherever it is found: by a second name, or because a rename failed.
        self._inodes: set[str] = set()
        self._looks: set[str] = set()
        self._lock = threading.Lock()
        # A process that is forked in the middle of a line would hold the lock for ever.
        os.register_at_fork(
            before=self._lock.acquire,
            after_in_parent=self._lock.release,
            after_in_child=self._lock.release,
        )
        # Held by this process and all that it forks, as long as one of them lives.
        writers = os.open(os.path.join(folder, "writers"), os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(writers, fcntl.LOCK_SH)

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """One thread of one process at a time, which knows what the others have written."""
        with self._lock:
            self._file = os.open(self._journal, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX)
                self._learn()
                yield
            finally:
                os.close(self._file)

    def is_users(self, path: str) -> bool:
        """Whether it was there before the run."""
        each = path
        while each not in self._own:
            if each == os.path.dirname(each):
                return True
            each = os.path.dirname(each)
        return not self._own[each] or any(inode(at) in self._inodes for at in {each, path})

    def add(self, path: str, what: Literal["new", "left"], link_to: str = "") -> None:
        """Something new; `link_to` is the file of the user's that it is another name of."""
        if self.is_users(path) or link_to:
            self._write(Entry(what, path, inode=inode(link_to)))

    def keep(self, path: str, leave: Literal["it", "empty", "copy"]) -> None:
        """Set a file of the user's aside; what is left at its place may be changed.

        Only a rename is instant for any size, and leaves the file itself as it is.
        """
        other = self._find_place(path)
        try:
            entry = Entry("kept", path, other, inode(path))
            if leave == "it":
                self._write(entry)
                with contextlib.suppress(OSError):  # a file system without hard links
                    os.link(path, other, follow_symlinks=False)
                    return
            elif not os.access(os.path.dirname(path), os.W_OK):
                raise PermissionError
            else:
                self._write(entry)
            os.rename(path, other)
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise
            # In a folder that is not writable, on a mount of its own: it can only be copied.
            _copy(path, other)
            self._write(Entry("copied", path, other, inode(path)))
            return
        try:
            if leave == "copy":
                _copy(other, path)
            else:
                os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
                os.chmod(path, stat.S_IMODE(os.stat(other).st_mode))
        except BaseException:
            os.replace(other, path)
            raise

    def move(self, path: str, other: str, what: Literal["new", "left"]) -> None:
        """The run renames it; nothing need be kept unless it is the user's, or holds such."""
        below = [own for key, own in self._own.items() if key.startswith(path + "/")]
        if self.is_users(path) or not all(below):
            self._write(Entry("moved", path, other, inode(path)))
        else:
            self.add(other, what)

    def remove_folder(self, path: str) -> None:
        found = os.lstat(path)
        times = (found.st_atime_ns, found.st_mtime_ns)
        self._write(Entry("gone", path, "", inode(path), stat.S_IMODE(found.st_mode), times))

    def change_looks(self, path: str) -> None:
        if path not in self._looks:
            found = os.stat(path)
            times = (found.st_atime_ns, found.st_mtime_ns)
            self._write(Entry("looks", path, mode=stat.S_IMODE(found.st_mode), times=times))

    def _write(self, entry: Entry) -> None:
        line = b"\n" + json.dumps(asdict(entry)).encode()
        if os.write(self._file, line) < len(line):
            raise OSError(errno.ENOSPC, "no space left to set a file aside", entry.path)
        self._learn()

    def _learn(self) -> None:
        size = os.fstat(self._file).st_size
        for _, entry in parse(os.pread(self._file, size - self._read, self._read)):
            self._note(entry)
        self._read = size

    def _note(self, entry: Entry) -> None:
        if entry.what == "copied":
            self._inodes.discard(entry.inode)  # the run writes into the file itself
        elif entry.inode:
            self._inodes.add(entry.inode)
        if entry.what == "looks":
            self._looks.add(entry.path)
            return
        if entry.what == "moved":
            was_own = not self.is_users(entry.path)
            for key in [key for key in self._own if is_in(key, entry.other)]:
                del self._own[key]
            for key in [key for key in self._own if is_in(key, entry.path)]:
                self._own[entry.other + key[len(entry.path) :]] = self._own.pop(key)
            self._own[entry.other] = was_own
        self._own[entry.path] = True

    def _find_place(self, path: str) -> str:
        """Where a rename leads: on the same file system, out of the script's sight."""
        parent, folder = os.path.dirname(path), self.folder
        device = os.stat(parent).st_dev
        if os.stat(folder).st_dev != device:
            above = os.path.dirname(parent)
            while os.stat(above).st_dev == device and os.access(above, os.W_OK) and above != parent:
                parent, above = above, os.path.dirname(above)
            if os.access(parent, os.W_OK):
                folder = os.path.join(parent, f"{NAME}-{digest(self.folder)}")
                os.makedirs(folder, 0o700, exist_ok=True)
        return os.path.join(folder, f"{time.time_ns():x}-{os.path.basename(path)[:50]}")


def parse(data: bytes) -> Iterator[tuple[int, Entry]]:
    """Every line with where it begins; one that was not finished tells of nothing."""
    offset = 0
    for line in data.split(b"\n"):
        with contextlib.suppress(ValueError, TypeError):
            yield offset, Entry(**json.loads(line))
        offset += len(line) + 1


def _copy(source: str, target: str) -> None:
    """With its mode and times; where the file system can, its blocks are shared."""
    with open(source, "rb") as here, open(target, "wb") as there:
        try:
            while os.copy_file_range(here.fileno(), there.fileno(), 1 << 30):
                pass
        except OSError:  # between file systems, or an old kernel
            here.seek(0)
            there.seek(0)
            shutil.copyfileobj(here, there)
    shutil.copystat(source, target)


def digest(text: str) -> str:
    return hashlib.sha256(os.fsencode(text)).hexdigest()[:12]


def is_in(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder + "/")


def inode(path: str) -> str:
    """ "" where there is nothing."""
    try:
        return str(os.lstat(path).st_ino)
    except OSError:
        return ""
