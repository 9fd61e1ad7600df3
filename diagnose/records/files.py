"""How is a file or folder written so that nobody ever sees half of it?"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


def write_bytes(path: Path, content: bytes | memoryview) -> None:
    """Old content or new content, never half of one; no leftovers on failure."""
    write_file(path, lambda part: part.write_bytes(content))


def write_file(path: Path, write: Callable[[Path], object]) -> None:
    """Whole or not at all; `write` fills a temporary neighbour that then takes the name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # The prefix is what .gitignore knows.
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".tmp-")
    os.close(handle)
    part = Path(name)
    try:
        write(part)
        # mkstemp makes the file private; a report is for whoever may read the directory.
        part.chmod(0o644)
        flush(part)
        os.replace(part, path)
        flush(path.parent)
    finally:
        # After the rename there is nothing left to remove; after any failure there is.
        part.unlink(missing_ok=True)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder to fill, which takes its name, and the place of an older one, at the end."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part"))
    try:
        yield part
        for file in part.iterdir():
            flush(file)
        old = part.with_suffix(".old")
        if path.exists():
            os.replace(path, old)  # a folder that is not empty cannot be replaced in one go
        os.replace(part, path)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def flush(path: Path) -> None:
    """Down to the disk, a file or a directory: a rename must not overtake the content."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
