"""`python -m diagnose` and the command `diagnose`: is this a place where it can run at all?"""

from __future__ import annotations

import sys
from typing import Sequence  # noqa: UP035 - an older Python must be able to read this file

USAGE = 2


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code of the command line."""
    if sys.version_info < (3, 10):  # noqa: UP036 - a clone may be run with any Python
        found = ".".join(map(str, sys.version_info[:2]))
        print(f"diagnose: Python 3.10 or newer is needed, this is {found}", file=sys.stderr)
        return USAGE
    if not sys.platform.startswith("linux"):
        print(f"diagnose: only Linux is supported, this is {sys.platform}", file=sys.stderr)
        return USAGE
    from diagnose.commands.cli import main as run

    return run(argv)


if __name__ == "__main__":
    sys.exit(main())
