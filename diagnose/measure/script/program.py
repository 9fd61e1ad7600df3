"""How does a script run as if Python had started it, inside this process?

Its `__main__`, arguments, first import path, output and exit code are its own. An exception of
its own is shown as Python would show it, without the frames of whoever runs it here.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType, TracebackType

PACKAGE = Path(__file__).resolve().parents[2]


class Enough(BaseException):
    """Raised between two steps once everything is measured; no `except Exception` holds it."""


@dataclass(frozen=True)
class End:
    """How the script ended."""

    code: int
    stopped: bool = False  # by us, because everything was measured
    interrupted: bool = False
    error: str = ""  # the type of its own exception
    frames: str = ""  # where it failed, if that may be our doing


class NoScript(Exception):
    """There is nothing to run; the message says what to do."""


def read_program(script: str) -> CodeType:
    """The compiled script. A syntax error is the user's, and raised as such."""
    try:
        with io.open_code(script) as file:
            source = file.read()
    except FileNotFoundError:
        raise NoScript(f"there is no script {os.path.relpath(script)}") from None
    except OSError as error:
        raise NoScript(f"cannot read {os.path.relpath(script)}: {error.strerror}") from None
    # With the flags of the script's own, not those of this file.
    return compile(source, script, "exec", dont_inherit=True)


def run_program(
    script: Path, arguments: Sequence[str], suspected: Callable[[BaseException], bool]
) -> End:
    """Run it to its end, or until it is stopped.

    `suspected` says whether an exception may be our doing; the script's traceback is not shown
    as if it were the script's own then.
    """
    script_path = os.path.abspath(script)  # as Python names its main file
    try:
        program = read_program(script_path)
    except (SyntaxError, ValueError):
        traceback.print_exc(limit=0)
        return End(1, error="SyntaxError")
    module = ModuleType("__main__")
    module.__dict__.update(__file__=script_path, __builtins__=__builtins__, __spec__=None)
    with _as_main(module, script, arguments):
        try:
            exec(program, module.__dict__)
        except Enough:
            return End(0, stopped=True)
        except SystemExit as error:
            if error.code not in (None, 0) and suspected(error):
                return End(0, stopped=True, frames=users_traceback(error))
            return End(_exit_code(error.code))
        except KeyboardInterrupt:
            return End(130, interrupted=True)
        except BaseException as error:  # the user's own, whatever it is
            if suspected(error):
                return End(0, stopped=True, frames=users_traceback(error))
            _hide_our_frames(error)
            sys.excepthook(type(error), error, error.__traceback__)  # the script may have its own
            return End(1, error=type(error).__name__)
    return End(0)


@contextlib.contextmanager
def _as_main(module: ModuleType, script: Path, arguments: Sequence[str]) -> Iterator[None]:
    main, argv, path = sys.modules["__main__"], sys.argv, list(sys.path)
    streams = {name: getattr(sys, name) for name in ("stdout", "stderr")}
    # The script may have modules of these names beside it; this process keeps its own objects.
    hidden = {name: each for name, each in sys.modules.items() if name.split(".")[0] == "bench"}
    for name in hidden:
        del sys.modules[name]
    sys.modules["__main__"], sys.argv = module, [str(script), *arguments]
    sys.path[0] = str(script.resolve().parent)
    handler = signal.getsignal(signal.SIGTERM)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        yield
    finally:
        for name, stream in streams.items():
            if getattr(sys, name) is not stream:  # one of the script's, which it may have closed
                with contextlib.suppress(OSError, ValueError, AttributeError):
                    getattr(sys, name).flush()
                setattr(sys, name, stream)
        sys.modules["__main__"], sys.argv = main, argv
        sys.modules.update(hidden)
        sys.path[:] = path
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)


def _exit_code(code: object) -> int:
    """As Python does: None is 0, a number itself, and anything else is printed and 1."""
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    print(code, file=sys.stderr)
    return 1


def users_traceback(error: BaseException) -> str:
    _hide_our_frames(error)
    return "".join(traceback.format_exception(error))


def _hide_our_frames(error: BaseException) -> None:
    """Of every exception of the chain."""
    seen: set[int] = set()
    chain: list[BaseException | None] = [error]
    while chain:
        each = chain.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        each.__traceback__ = _without_ours(each.__traceback__)
        chain += [each.__cause__, each.__context__, *_members(each)]


def _members(error: BaseException) -> list[BaseException]:
    """Of an exception group, which Python has since 3.11."""
    members = getattr(error, "exceptions", ())
    known = isinstance(members, tuple | list)
    return [each for each in members if isinstance(each, BaseException)] if known else []


def _without_ours(trace: TracebackType | None) -> TracebackType | None:
    if trace is None:
        return None
    rest = _without_ours(trace.tb_next)
    if PACKAGE in Path(trace.tb_frame.f_code.co_filename).parents:
        return rest
    return TracebackType(rest, trace.tb_frame, trace.tb_lasti, trace.tb_lineno)
