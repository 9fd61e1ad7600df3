"""How does a script run without leaving a trace? In a child, whose files its parent puts back.

The child has the terminal, the directory and the arguments of the command. The parent waits for
it, passes signals on, and puts the files back when nothing of the run is left.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path

from diagnose.commands.cli import main
from diagnose.commands.shared.arguments import is_first_rank
from diagnose.commands.shared.keep import complain
from diagnose.commands.shared.restored import LEFT_OVER, tell_restored
from diagnose.measure.jobs import ROOT
from diagnose.measure.process import adopt_orphans, die_with_parent, end_marked
from diagnose.measure.script.put_back import Watch
from diagnose.measure.script.trackers import tracker_variables
from diagnose.measure.session import CouldNotOpen
from diagnose.records.exit_codes import COULD_NOT_MEASURE

# Marks every process of the run, and tells it where files are set aside.
VARIABLE = "DIAGNOSE_ASIDE"
# As `measure/process.py` does: a stranger's diagnose.py in the directory must not be imported.
_CHILD = (
    "import sys; sys.path[0] = sys.argv[1]; "
    "from diagnose.commands.shared.throwaway import run_child; sys.exit(run_child(sys.argv[2:]))"
)
_HEARD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGCHLD)
LOOK_SECONDS = 0.2
# torchrun kills after 30 s what it has asked to end.
LONGEST_GOODBYE_SECONDS = 20.0
ORPHANS_GOODBYE_SECONDS = 3.0


def run_thrown_away(arguments: Namespace) -> int:
    """The exit code of the child, which is the script's own; 128 + n if signal n killed it."""
    start = Path.cwd()
    with _waiting_signals():
        try:
            watch = Watch(start, arguments.keep_files)
        except OSError as error:
            raise CouldNotOpen(
                f"files cannot be protected: {error.strerror} ({error.filename}); make "
                f"{start} writable, or name a folder that is: TMPDIR=DIR diagnose ..."
            ) from None
        if watch.left_over:
            tell_restored(watch.left_over, LEFT_OVER)
        if is_first_rank():
            complain(
                "throw-away run: existing files are put back when it ends, new ones "
                + ("stay" if arguments.keep_files else "are moved to a folder named then")
            )
        code = COULD_NOT_MEASURE
        try:
            code = _run(arguments.words, watch)
        finally:
            changed = watch.has_changed()
            restored = watch.leave()
        if restored is None and changed and "RANK" not in os.environ:
            complain("another run is going on here; the last one to end puts the files back")
        if restored:
            tell_restored(restored)
    return COULD_NOT_MEASURE if restored and restored.problem else code


def run_child(words: Sequence[str]) -> int:
    """In the child; the parent may be gone already."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HEARD)
    die_with_parent()
    if os.environ[VARIABLE + "_PARENT"] != str(os.getppid()):
        return COULD_NOT_MEASURE
    return main(words, "run_here")


def _run(words: Sequence[str], watch: Watch) -> int:
    variables = {VARIABLE: str(watch.folder), VARIABLE + "_PARENT": str(os.getpid())}
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    adopt_orphans(True)
    try:
        child = subprocess.Popen(
            [sys.executable, *flags, "-c", _CHILD, str(ROOT), *words],
            env={**os.environ, **tracker_variables(watch.new), **variables},
            close_fds=False,  # a shell may have handed some to the script
        )
        code = _wait(child)
        end_marked(VARIABLE, str(watch.folder), ORPHANS_GOODBYE_SECONDS)
    finally:
        adopt_orphans(False)
    if code < 0:
        name = signal.Signals(-code).name
        why = " (out of memory?)" if code == -signal.SIGKILL else ""
        complain(f"the script was killed by {name}{why}")
        return 128 - code
    return code


def _wait(child: subprocess.Popen[bytes]) -> int:
    until = math.inf
    while (code := child.poll()) is None:
        seen = signal.sigtimedwait(_HEARD, LOOK_SECONDS)
        if time.monotonic() > until:
            child.kill()
        if seen is None or seen.si_signo == signal.SIGCHLD:
            continue
        # What the terminal sends has reached the child too.
        if seen.si_code <= 0:
            child.send_signal(seen.si_signo)
        if seen.si_signo != signal.SIGINT:
            until = min(until, time.monotonic() + LONGEST_GOODBYE_SECONDS)
    return code


@contextlib.contextmanager
def _waiting_signals() -> Iterator[None]:
    """Nothing interrupts the putting back; the child undoes this for itself."""
    usual = signal.pthread_sigmask(signal.SIG_BLOCK, _HEARD)
    try:
        yield
    finally:
        while signal.sigtimedwait(_HEARD, 0) is not None:
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, usual)
