"""How does a script run as if Python had started it, inside this process?

Its `__main__`, arguments, first import path, output and exit code are its own. An exception of
its own is shown as Python would show it, without the frames of whoever runs it here.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
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


def find_module(name: str) -> Path:
    """The file that `python -m` would run from here; nothing is imported for that."""
    spec: ModuleSpec | None = None
    places: list[str] | None = [os.getcwd(), *sys.path[1:]]
    for part in [*name.split("."), ""]:
        if part:
            spec = PathFinder.find_spec(part, places) if places is not None else None
        elif spec is not None and places is not None:  # a package: its __main__ is run
            spec = PathFinder.find_spec("__main__", places)
        if spec is None:
            break
        found = spec.submodule_search_locations
        places = list(found) if found is not None else None
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        raise NoScript(f"there is no module {name} to run from {os.getcwd()}")
    return Path(spec.origin)


def run_program(
    script: Path,
    arguments: Sequence[str],
    suspected: Callable[[BaseException], bool],
    name: str = "",
) -> End:
    """Run it to its end, or until it is stopped; `name` is that of a module, as for `python -m`.

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
    with _as_main(module, script, arguments, name):
        try:
            if name:
                _place_in_package(module, name, script)
            exec(program, module.__dict__)
        except Enough:
            return End(0, stopped=True)
        except SystemExit as error:
            # Meant, by whatever it was decided: the code stays, and a note says what came before.
            doubted = error.code not in (None, 0) and suspected(error)
            frames = users_traceback(error) if doubted else ""
            return End(_exit_code(error.code), stopped=doubted, frames=frames)
        except KeyboardInterrupt:
            return End(130, interrupted=True)
        except BaseException as error:  # the user's own, whatever it is
            if suspected(error):
                return End(0, stopped=True, frames=users_traceback(error))
            _hide_our_frames(error)
            sys.excepthook(type(error), error, error.__traceback__)  # the script may have its own
            return End(1, error=type(error).__name__)
    return End(0)


def _place_in_package(module: ModuleType, name: str, script: Path) -> None:
    """Its packages are imported first, and processes that it spawns find it by its name."""
    if script.name == "__main__.py" and not name.endswith("__main__"):
        name += ".__main__"
    parent = name.rpartition(".")[0]
    if parent:
        importlib.import_module(parent)
    module.__spec__ = importlib.util.spec_from_file_location(name, script)
    module.__package__ = parent


@contextlib.contextmanager
def _as_main(
    module: ModuleType, script: Path, arguments: Sequence[str], name: str
) -> Iterator[None]:
    main, argv, path = sys.modules["__main__"], sys.argv, list(sys.path)
    streams = {each: getattr(sys, each) for each in ("stdout", "stderr")}
    # The script may have modules of these names beside it; this process keeps its own objects.
    hidden = {key: each for key, each in sys.modules.items() if key.split(".")[0] == "bench"}
    for key in hidden:
        del sys.modules[key]
    sys.modules["__main__"], sys.argv = module, [str(script), *arguments]
    sys.path[0] = os.getcwd() if name else str(script.resolve().parent)
    handler = signal.getsignal(signal.SIGTERM)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        yield
    finally:
        for each, stream in streams.items():
            if getattr(sys, each) is not stream:  # one of the script's, which it may have closed
                with contextlib.suppress(OSError, ValueError, AttributeError):
                    getattr(sys, each).flush()
                setattr(sys, each, stream)
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
