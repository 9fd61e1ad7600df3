"""How are processes watched that the script starts itself? Each from an entrance of its own.

What `mp.spawn` starts (Lightning's ddp_spawn and Accelerate's notebook_launcher too) is the job:
it is watched, changed and ended like a script. A process that the script starts by hand may have
to answer somebody, so it is only watched. Both hand their record to the process that started them.
"""

from __future__ import annotations

import multiprocessing.process
import os
import pickle
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch.multiprocessing  # noqa: F401

from diagnose.measure.script.patches import Patches
from diagnose.measure.script.program import PACKAGE, Enough
from diagnose.measure.script.watch.where import Sources
from diagnose.records.header import Header
from diagnose.records.script import Options, ScriptRecord

_STOPPED = "stopped"
BY_HAND = (
    "nothing was tried because the script starts its processes by hand; start its ranks with "
    "torchrun or mp.spawn for trials"
)
# A function of the same name hides the module.
_SPAWN: Any = sys.modules["torch.multiprocessing.spawn"]


@dataclass(frozen=True)
class Entrance:
    """Stands for the function that a process was started for."""

    function: Callable[..., Any]
    script: Path
    options: Options
    folder: Path
    session: Callable[..., Any]  # the class of the one that made this
    note: str = ""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        session = self.session(self.script, _no_header, self.options, self._hand_in)
        result, stopped = session.call(self.function, args, kwargs)
        if stopped:
            (self.folder / _STOPPED).touch()
        return result

    def _hand_in(self, record: ScriptRecord) -> None:
        if not record.steps and not record.ranks:
            return  # not a process that trains
        if self.note:
            record = replace(record, notes=(*record.notes, self.note))
        path = self.folder / str(os.getpid())
        path.with_suffix(".new").write_bytes(pickle.dumps(record))
        path.with_suffix(".new").rename(path.with_suffix(".record"))


class Spawned:
    """The processes of one script."""

    def __init__(
        self, script: Path, options: Options, sources: Sources, session: Callable[..., Any]
    ) -> None:
        self._session = session
        self._script = script.absolute()
        self._options = options
        self._sources = sources
        self._process = os.getpid()
        self._folder: Path | None = None

    def watch(self, patches: Patches) -> None:
        patches.put(multiprocessing.process.BaseProcess, "start", self._entering)
        patches.put(_SPAWN.ProcessContext, "join", self._ending)

    def read(self) -> ScriptRecord | None:
        """What the first of them has handed in; its header is the reader's to fill."""
        found = sorted(self._folder.glob("*.record")) if self._folder is not None else []
        record = cast(ScriptRecord, pickle.loads(found[0].read_bytes())) if found else None
        if record is None or len(found) == 1:
            return record
        note = f"{len(found)} processes of the script trained, each by itself: this is one of them"
        return replace(record, notes=(*record.notes, note))

    def close(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _entering(self, original: Any) -> Any:
        def start(process: Any) -> Any:
            if os.getpid() != self._process:
                return original(process)
            target, args = process._target, process._args
            if target is _SPAWN._wrap:
                process._args = (self._entrance(args[0], self._options), *args[1:])
            elif self._sources.is_users(getattr(target, "__code__", _no_header.__code__)):
                only_watch = replace(self._options, mode="watch")
                process._target = replace(self._entrance(target, only_watch), note=BY_HAND)
            # A new Python gets this path, and must find the entrance.
            sys.path.append(str(PACKAGE.parent))
            try:
                return original(process)
            finally:
                sys.path.remove(str(PACKAGE.parent))

        return start

    def _ending(self, original: Any) -> Any:
        def join(context: Any, *args: Any, **kwargs: Any) -> Any:
            done = original(context, *args, **kwargs)
            if done and self._folder is not None and (self._folder / _STOPPED).exists():
                raise Enough  # what comes after them has nothing to go on
            return done

        return join

    def _entrance(self, function: Callable[..., Any], options: Options) -> Entrance:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="diagnose-"))
        return Entrance(function, self._script, options, self._folder, self._session)


def _no_header() -> Header:
    return cast(Header, None)
