"""How does a run not touch what was there? Everything that it writes is seen before it is written.

Python tells an audit hook of every file that it opens, renames or deletes. The writers of torch
and safetensors open files without it, and are wrapped. Processes that the script forks inherit
all this; those that multiprocessing starts afresh are given it.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.util
import multiprocessing.spawn
import os
import stat
import sys
import tempfile
import threading
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from diagnose.measure.script.aside import Aside, is_in
from diagnose.measure.script.patches import Patches
from diagnose.measure.script.trackers import TRACKERS

PACKAGES = Path(__file__).resolve().parents[3]
WRITING = os.O_WRONLY | os.O_RDWR | os.O_TRUNC | os.O_CREAT
ANEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
# What is no file, and what libraries keep for later runs.
NOT_FILES = ("/dev", "/proc", "/sys")
CACHES = ("~/.cache", "~/.triton", "~/.nv", "~/.config")
CACHE_VARIABLES = (
    "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME",
    "MPLCONFIGDIR",
    "HF_HOME",
    "HF_HUB_CACHE",
    "HF_DATASETS_CACHE",
    "TORCH_HOME",
    "TORCHINDUCTOR_CACHE_DIR",
    "TRITON_CACHE_DIR",
    "CUDA_CACHE_PATH",
)


class Writers:
    """Sees whoever writes in this process, until it is stopped."""

    def __init__(self, folder: str, ours: Sequence[str] = ()) -> None:
        """`ours` are files and folders that the tool itself writes."""
        self._aside = Aside(folder)
        self._patches = Patches()
        self._busy = threading.local()
        self._temporary = os.path.realpath(tempfile.gettempdir())
        self._home = os.path.realpath(os.path.dirname(folder))
        caches = [*CACHES, *(os.environ.get(name, "") for name in CACHE_VARIABLES)]
        caches = [os.path.expanduser(each) for each in caches if each]
        inductor = os.path.join(self._temporary, "torchinductor_*")
        self._exempt = [*NOT_FILES, *map(os.path.realpath, [folder, *ours, *caches])]
        self._inductor = inductor[:-1]
        self._events: dict[str, Callable[..., None]] = {
            "open": self._open,
            "os.rename": self._rename,
            "os.remove": self._remove,
            "os.rmdir": self._remove,
            "os.mkdir": self._mkdir,
            "os.link": self._link,
            "os.symlink": lambda source, target, at: self._mkdir(target, 0, at),
            "os.truncate": lambda path, length: self._open(path, None, os.O_WRONLY),
            "os.chmod": self._change_looks,
            "os.utime": self._change_looks,
            "sqlite3.connect": self._connect,
        }
        sys.addaudithook(self._hear)
        seen = {"torch": self._wrap_torch, "safetensors": self._wrap_safetensors}
        trackers = {
            name: lambda module, change=change: change(self._patches, module)
            for name, change in TRACKERS.items()
        }
        after = _AfterImport({**seen, **trackers})
        sys.meta_path.insert(0, after)
        self._patches.on_undo(lambda: sys.meta_path.remove(after))
        joining = _Joining(folder, tuple(ours))
        self._patches.put(
            multiprocessing.spawn,
            "get_preparation_data",
            lambda original: lambda name: {**original(name), "diagnose": joining},
        )

    def stop(self) -> None:
        """Python never forgets a hook: from now on it does nothing."""
        self._events.clear()
        self._patches.undo()

    @contextlib.contextmanager
    def ours(self) -> Iterator[None]:
        """What is written meanwhile in this thread is the tool's."""
        before = getattr(self._busy, "on", False)
        self._busy.on = True
        try:
            yield
        finally:
            self._busy.on = before

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        act = self._events.get(event)
        if act is not None and not getattr(self._busy, "on", False):
            with self.ours():
                act(*arguments)

    # What is about to happen.

    def _open(self, path: Any, mode: Any, flags: int) -> None:
        if isinstance(path, int) or not flags & WRITING:
            return
        real = os.path.realpath(os.fsdecode(path))
        found = _find(real)
        if found is None:
            if flags & os.O_CREAT:
                self._add(real)
        elif stat.S_ISREG(found.st_mode) and not flags & os.O_EXCL and os.access(real, os.W_OK):
            self._keep(real, "empty" if flags & os.O_TRUNC else "copy")

    def _rename(self, source: Any, target: Any, source_at: int, target_at: int) -> None:
        path, other = _locate(source, source_at), _locate(target, target_at)
        found, there = _find(path), _find(other)
        if found is None or (there is not None and os.path.samestat(found, there)):
            return
        with self._aside.turn():
            self._lose(other)
            if self._is_exempt(path):
                if not self._is_exempt(other):
                    self._aside.add(other, self._judge(other))
            elif self._aside.is_users(path) or not self._is_exempt(other):
                self._aside.move(path, other, self._judge(other))

    def _remove(self, path: Any, at: int) -> None:
        real = _locate(path, at)
        with self._aside.turn():
            self._lose(real)

    def _mkdir(self, path: Any, mode: int, at: int) -> None:
        real = _locate(path, at)
        if _find(real) is None:
            self._add(real)

    def _link(self, source: Any, target: Any, source_at: int, target_at: int) -> None:
        path, other = _locate(source, source_at), _locate(target, target_at)
        if _find(other) is None and not self._is_exempt(other):
            with self._aside.turn():
                link_to = path if self._aside.is_users(path) else ""
                self._aside.add(other, self._judge(other), link_to)

    def _change_looks(self, path: Any, *rest: Any) -> None:
        if isinstance(path, int):
            return
        real = os.path.realpath(_locate(path, rest[-1]))
        if _find(real) is not None and not self._is_exempt(real):
            with self._aside.turn():
                if self._aside.is_users(real):
                    self._aside.change_looks(real)

    def _connect(self, database: Any) -> None:
        name = os.fsdecode(database)
        if name.startswith("file:"):
            parts = urllib.parse.urlsplit(name)
            if "mode=ro" in parts.query or "mode=memory" in parts.query:
                return
            name = urllib.parse.unquote(parts.path)
        if name not in ("", ":memory:"):
            for suffix in ("", "-journal", "-wal", "-shm"):
                self._open(name + suffix, None, os.O_RDWR | os.O_CREAT)

    # What is done about it.

    def _keep(self, path: str, leave: Literal["it", "empty", "copy"]) -> None:
        if not self._is_exempt(path):
            with self._aside.turn():
                if self._aside.is_users(path):
                    self._aside.keep(path, leave)

    def _lose(self, path: str) -> None:
        """It is about to be deleted or replaced; whatever cannot be fails by itself."""
        found = _find(path)
        if found is None or self._is_exempt(path) or not self._aside.is_users(path):
            return
        if stat.S_ISDIR(found.st_mode):
            if not os.listdir(path):
                self._aside.remove_folder(path)
        elif os.access(os.path.dirname(path), os.W_OK):
            self._aside.keep(path, "it")

    def _add(self, path: str) -> None:
        # The report may lie in a folder that the script makes: then that is nobody's alone.
        if not self._is_exempt(path) and not any(is_in(each, path) for each in self._exempt):
            with self._aside.turn():
                self._aside.add(path, self._judge(path))

    def _judge(self, path: str) -> Literal["new", "left"]:
        """Temporary files are the script's own business; a job may live among them, though."""
        at_home = is_in(path, self._home) and self._home != self._temporary
        return "left" if is_in(path, self._temporary) and not at_home else "new"

    def _is_exempt(self, path: str) -> bool:
        return (
            any(is_in(path, each) for each in self._exempt)
            or "/__pycache__" in path
            or path.startswith(self._inductor)
        )

    # Writers that Python does not tell of.

    def _will_write(self, file: Any, flags: int = ANEW) -> None:
        if isinstance(file, str | bytes | os.PathLike):
            self._hear("open", (file, None, flags))

    def _wrap_torch(self, torch: ModuleType) -> None:
        will_write = self._will_write

        class Writer(torch._C.PyTorchFileWriter):  # type: ignore[misc, name-defined]
            def __init__(self, file: Any, *rest: Any, **options: Any) -> None:
                will_write(file)
                super().__init__(file, *rest, **options)

        def saving(original: Callable[..., Any]) -> Callable[..., Any]:
            def save(self: Any, file: Any, *rest: Any, **options: Any) -> Any:
                will_write(file)
                return original(self, file, *rest, **options)

            return save

        def mapping(original: Callable[..., Any]) -> Callable[..., Any]:
            def from_file(filename: Any, shared: Any = False, *rest: Any, **options: Any) -> Any:
                if shared:
                    will_write(filename, os.O_RDWR | os.O_CREAT)
                return original(filename, shared, *rest, **options)

            return from_file

        self._patches.set(torch._C, "PyTorchFileWriter", Writer)
        self._patches.put(torch._C.ScriptModule, "save", saving)
        self._patches.put(torch._C._autograd._ProfilerResult, "save", saving)
        self._patches.put(torch, "from_file", mapping)
        storage = torch.UntypedStorage
        self._patches.put(storage, "from_file", lambda original: staticmethod(mapping(original)))

    def _wrap_safetensors(self, safetensors: ModuleType) -> None:
        def saving(original: Callable[..., Any]) -> Callable[..., Any]:
            def serialize_file(tensors: Any, filename: Any, *rest: Any, **options: Any) -> Any:
                self._will_write(filename)
                return original(tensors, filename, *rest, **options)

            return serialize_file

        # Its modules for torch and numpy take it from there.
        modules = [each for name, each in sys.modules.items() if name.startswith("safetensors.")]
        for module in (safetensors, *modules):
            if hasattr(module, "serialize_file"):
                self._patches.put(module, "serialize_file", saving)


class _AfterImport(importlib.abc.MetaPathFinder):
    """Changes a module once it is imported, and imports none for that."""

    def __init__(self, changes: Mapping[str, Callable[[Any], object]]) -> None:
        self._changes = changes
        self._asking = threading.local()
        for name in self._changes:
            if name in sys.modules:
                self._changes[name](sys.modules[name])

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if name not in self._changes or getattr(self._asking, "on", False):
            return None
        self._asking.on = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._asking.on = False
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            self._changes[name](module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


class _Joining:
    """Read in a process that multiprocessing has started, it lets that process take part."""

    def __init__(self, folder: str, ours: tuple[str, ...]) -> None:
        self._code = (
            f"import sys; sys.path.insert(0, {str(PACKAGES)!r}); "
            f"from diagnose.measure.script.writers import Writers; del sys.path[0]; "
            f"Writers({folder!r}, {ours!r})"
        )

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return exec, (self._code,)


def _find(path: str) -> os.stat_result | None:
    with contextlib.suppress(OSError):
        return os.lstat(path)
    return None


def _locate(path: Any, at: Any) -> str:
    """Where the name itself lies, a link not followed."""
    name = os.fsdecode(path).rstrip("/") or "/"
    if isinstance(at, int) and at >= 0:
        name = os.path.join(os.readlink(f"/proc/self/fd/{at}"), name)
    folder, last = os.path.split(name)
    if last in ("", ".", ".."):
        return os.path.realpath(name)
    return os.path.join(os.path.realpath(folder), last)
