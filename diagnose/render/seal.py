"""Is a figure still what was drawn from its record? A seal over every byte of the file.

Drawing again needs the same version of the plotting library; the seal needs nothing, so that
checking works wherever reports are read.
"""

from __future__ import annotations

import hashlib
import re

_BLANK = "0" * 64
_SEAL = re.compile(rb"record sha256 ([0-9a-f]{64}), figure sha256 ([0-9a-f]{64})")


def unsealed(fingerprint: str) -> str:
    """The text that a figure carries in its metadata while it is drawn."""
    return f"record sha256 {fingerprint}, figure sha256 {_BLANK}"


def seal(figure: bytes) -> bytes:
    """The same figure with the hash of itself, taken while the place of the hash was blank."""
    found = _SEAL.search(figure)
    if found is None:
        raise ValueError("the figure has no place for its seal")
    return _with_hash(figure, found, _hash(figure, found))


def is_sealed(figure: bytes) -> bool:
    return _SEAL.search(figure) is not None


def find_fault(figure: bytes, fingerprint: str) -> str:
    """Empty, or what is wrong with a sealed figure."""
    found = _SEAL.search(figure)
    if found is None or found.group(1).decode() != fingerprint:
        return "was drawn from another record"
    if found.group(2) != _hash(figure, found):
        return "was edited after it was drawn"
    return ""


def _hash(figure: bytes, found: re.Match[bytes]) -> bytes:
    blanked = _with_hash(figure, found, _BLANK.encode())
    return hashlib.sha256(blanked).hexdigest().encode()


def _with_hash(figure: bytes, found: re.Match[bytes], digest: bytes) -> bytes:
    return figure[: found.start(2)] + digest + figure[found.end(2) :]
