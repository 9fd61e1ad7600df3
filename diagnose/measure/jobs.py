"""Which job is meant? A built-in workload by its name, or the user's own file.

The built-in ones live in the bench/ beside this package: they come with the repository, not with
an installed wheel, and nothing here imports them by name.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

from diagnose.workload import Workload, WorkloadError

ROOT = Path(__file__).resolve().parents[2]

# In the order in which --help lists them: from the pure encoder to the full model, then the
# patient that is too small for its device, and then those that write, without and with pictures.
BUILT_IN: Mapping[str, str] = {
    "bert": "bench.bert",
    "dgca": "bench.dgca.workload",
    "timeseries": "bench.timeseries.workload",
    "textgen": "bench.textgen.workload",
    "vqa": "bench.vqa.workload",
    "molmo": "bench.vqa.molmo_workload",
}


def import_from_clone(name: str, what: str, otherwise: str = "") -> ModuleType:
    """A module of the bench/ beside this package, whatever else of that name is importable."""
    if not ROOT.joinpath(*name.split(".")).with_suffix(".py").is_file():
        raise WorkloadError(
            f"the {what} come with the repository, not with the installed package: clone it and "
            f"use `make`{otherwise}"
        )
    if sys.path[0] != str(ROOT):
        sys.path.insert(0, str(ROOT))
    return importlib.import_module(name)


def load(name_or_path: str, model_directory: Path | None = None) -> Workload:
    """A built-in workload by name, or the WORKLOAD of the user's own Python file."""
    workload = _find(name_or_path)
    if model_directory is None:
        return workload
    if workload.from_directory is None:
        raise WorkloadError(
            f"workload {workload.name} builds its own model, so --model has no use; "
            "textgen, vqa and molmo take one"
        )
    return workload.from_directory(model_directory)


def _find(name_or_path: str) -> Workload:
    if name_or_path in BUILT_IN:
        otherwise = ", or name your own file: --workload my_job.py"
        found = import_from_clone(BUILT_IN[name_or_path], "built-in workloads", otherwise)
        workload = found.WORKLOAD
        assert isinstance(workload, Workload)
        return workload
    path = Path(name_or_path)
    if path.suffix != ".py":
        raise WorkloadError(
            f"no workload '{name_or_path}'; use {', '.join(BUILT_IN)} or the path of a .py file"
        )
    if not path.is_file():
        raise WorkloadError(f"workload file {name_or_path} does not exist")
    try:
        module = _import(path.resolve())
    # The file is the user's: whatever it raises is an answer for them, not a fault of ours.
    # A script that parses arguments or trains at import time may also call sys.exit.
    except (Exception, SystemExit) as error:
        raise WorkloadError(
            f"workload file {name_or_path} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    workload = getattr(module, "WORKLOAD", None)
    if not isinstance(workload, Workload):
        raise WorkloadError(
            f"workload file {name_or_path} defines no WORKLOAD = Workload(...), as docs/own-job.md "
            f"shows; a plain training script needs none: diagnose script {name_or_path}"
        )
    _check_sizes(workload, name_or_path)
    return workload


def source_sha256(name_or_path: str) -> str:
    """Of the user's file, so that an edited job is not taken for the same one; else empty."""
    if name_or_path in BUILT_IN:
        return ""
    return hashlib.sha256(Path(name_or_path).read_bytes()).hexdigest()


def _check_sizes(workload: Workload, name: str) -> None:
    if not workload.sizes:
        raise WorkloadError(f"workload {workload.name} in {name} has no sizes")
    for size_name, size in workload.sizes.items():
        for key, value in size.shape.items():
            if not isinstance(value, (int, float, str)):
                raise WorkloadError(
                    f"size '{size_name}' in {name}: shape['{key}'] is a {type(value).__name__}; "
                    "only numbers and text can be recorded"
                )


def _import(path: Path) -> ModuleType:
    """Run the file as a module that its neighbours and its own loader processes can find.

    Where loader processes are not forked (macOS, Windows, Python 3.14), they import the user's
    Dataset class by the name of its module; so the folder joins the search path, at the end,
    where it hides nothing, and the module keeps the file's name unless that is taken.
    """
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    found = importlib.util.find_spec(path.stem) if path.stem.isidentifier() else None
    ours = found is not None and Path(found.origin or "").resolve() == path
    name = path.stem if ours else f"workload_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
