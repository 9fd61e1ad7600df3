"""Where do records live, and how do they survive a crash, a full disk or a damaged file?"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import tempfile
from collections.abc import Iterator
from dataclasses import Field
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

from diagnose.records import codec, limits
from diagnose.records.header import SCHEMA, Header
from diagnose.records.run import RunRecord


class Record(Protocol):
    """What a verb leaves: a frozen dataclass of records/."""

    FILE_NAME: ClassVar[str]  # under its label
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def header(self) -> Header: ...


T = TypeVar("T", bound=Record)

PREVIOUS_NAME = "run.previous.json"
LOCK_NAME = ".lock"

# A full run is well under 1 MiB; a larger file is not ours, and parsing it costs ten times that.
LARGEST_FILE_BYTES = 64 * 2**20

# reports/claims/ holds what all records together say about published claims.
RESERVED_LABEL = "claims"
_LABEL = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


class StoreError(Exception):
    """A record cannot be read or written; the message is one sentence for the user."""


class LabelError(StoreError):
    """The user asked for a label that cannot name a directory."""


def validate_label(label: str) -> str:
    if not _LABEL.fullmatch(label):
        raise LabelError(
            f"the label {label[:80]!r} cannot name a directory; use up to 64 of a-z 0-9 . _ - "
            "and begin with a letter or digit"
        )
    if label == RESERVED_LABEL:
        raise LabelError(f"the label {label!r} is the name of the page of claims; use another")
    return label


def label_from_device_name(name: str) -> str:
    """A label that says which device it was: "GeForce RTX 4090" is geforce-rtx-4090."""
    slug = re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-.")
    return slug[:64].rstrip("-.") or "device"


def record_path(reports_dir: Path, label: str) -> Path:
    """Where the record of a label is; a label that leads elsewhere is a LabelError."""
    return reports_dir / validate_label(label) / RunRecord.FILE_NAME


def find_records(reports_dir: Path, name: str = RunRecord.FILE_NAME) -> list[Path]:
    return sorted(reports_dir.glob(f"*/{name}"))


def save(record: Record, directory: Path) -> Path:
    """Write reports/<label>/run.json so that at every moment a whole file is there."""
    validate_label(record.header.label)
    path = directory / record.FILE_NAME
    # Serialized first: a number that cannot be stored must not cost the old file.
    try:
        content = codec.dumps(record)
    except ValueError as error:
        raise StoreError(
            f"{path} was not written: the record cannot be stored ({error})"
        ) from error
    write_atomically(path, content)
    return path


def write_atomically(path: Path, content: bytes) -> None:
    """Old content or new content, never half of one; no leftovers on failure."""
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".tmp-")
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            # mkstemp makes the file private; a report is for whoever may read the directory.
            os.fchmod(file.fileno(), 0o644)
            os.fsync(file.fileno())
        os.replace(temporary, path)
        temporary = None
        _sync_directory(path.parent)
    except OSError as error:
        raise StoreError(_explain_write(path, error)) from error
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _explain_write(path: Path, error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{path} was not written because the disk is full; free some space and run again"
    denied = error.errno in (errno.EACCES, errno.EPERM, errno.EROFS)
    why = f"no permission to write in {path.parent}" if denied else error.strerror or str(error)
    return f"{path} was not written: {why}; --reports DIR names another place"


def read_json(path: Path) -> Any:
    """What a file holds, or a StoreError that says in one sentence why it cannot be read."""
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE_BYTES + 1)
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror or error}") from error
    if len(content) > LARGEST_FILE_BYTES:
        raise StoreError(
            f"{path} is over {LARGEST_FILE_BYTES >> 20} MiB: not a record of this tool"
        )
    try:
        return json.loads(content.decode())
    except RecursionError:
        raise StoreError(f"{path} is nested too deeply: not a record of this tool") from None
    # JSON and UTF-8 errors are ValueErrors, and so is a number of too many digits.
    except ValueError as error:
        raise StoreError(
            f"{path} is not valid JSON ({error}); restore it or measure again"
        ) from error


def load(path: Path, kind: type[T]) -> T:
    """The record of a file, or a StoreError that says in one sentence why there is none."""
    data = read_json(path)
    head = data.get("header", data) if isinstance(data, dict) else None
    check_schema(path, head, SCHEMA)
    try:
        record = codec.from_dict(kind, data)
        limits.validate(record)
        if not _LABEL.fullmatch(record.header.label):
            raise ValueError("record.header.label: not a label")
        # Text that cannot be written back (an unpaired surrogate) is refused here as well.
        codec.dumps(record)
    except ValueError as error:
        raise StoreError(f"{path} is damaged: {error}; restore it or measure again") from error
    return record


def check_schema(path: Path, head: Any, known: int) -> None:
    schema = head.get("schema") if isinstance(head, dict) else None
    if type(schema) is not int or not isinstance(head, dict):
        raise StoreError(f"{path} is not a record of this tool: it has no schema number")
    if schema == known:
        return
    writer = (
        f"version {str(head.get('tool_version', 'unknown'))[:40]!r} (schema {str(schema)[:20]})"
    )
    if schema > known:
        raise StoreError(
            f"{path} was written by the newer {writer}, this one knows {known}: update this tool"
        )
    raise StoreError(
        f"{path} was written by the older {writer}, which this one (schema {known}) does not "
        "read: measure again, or render it with that version"
    )


def quarantine(path: Path) -> Path:
    """Move a damaged file out of the way, without losing an earlier one."""
    target = path.with_name(f"{path.name}.corrupt")
    number = 2
    while target.exists():
        target = path.with_name(f"{path.name}.{number}.corrupt")
        number += 1
    try:
        os.replace(path, target)
    except OSError as error:
        raise StoreError(f"{path} cannot be renamed: {error.strerror or error}") from error
    return target


def set_aside(path: Path) -> Path | None:
    """Keep a complete run before a new one replaces it; None if there is none to keep.

    Copied, not moved: an interruption before the first save must not leave the label empty.
    """
    if not path.exists() or not load(path, RunRecord).complete:
        return None
    target = path.with_name(PREVIOUS_NAME)
    write_atomically(target, path.read_bytes())
    return target


@contextlib.contextmanager
def label_lock(directory: Path, otherwise: str = "use --label") -> Iterator[None]:
    """One writer per label. The system drops the lock with the process, however it ends."""
    path = directory / LOCK_NAME
    try:
        directory.mkdir(parents=True, exist_ok=True)
        file = path.open("ab")
    except OSError as error:
        raise StoreError(_explain_write(path, error)) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise StoreError(
                f"another run is writing this label ({directory}); wait for it or {otherwise}"
            ) from error
        yield
