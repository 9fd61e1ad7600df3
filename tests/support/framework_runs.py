"""How are jobs of many frameworks run, without us and watched, in little time?

`python -m tests.support.framework_runs FOLDER jobs|planted|NAME...`: the packages are imported
once, and every run is forked from there. FOLDER gets what a job kept, its output, and what was said
about it.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

SCRIPTS = Path(__file__).parent / "frameworks"
LOOPS = (
    "autocast",
    "scaler",
    "accumulation",
    "checkpointing",
    "average",
    "per_sample",
    "functional_optimizer",
    "gan",
    "lbfgs",
    "evaluation",
    "compiled",
)
# What is run, and with which words.
JOBS: dict[str, tuple[str, ...]] = {
    "trainer": ("trainer.py",),
    "lightning": ("lightning_job.py",),
    "accelerate": ("accelerate_job.py",),
    "sentences": ("sentences.py",),
    "reinforcement": ("reinforcement.py",),
    "graphs": ("graphs.py",),
    "generation": ("generation.py",),
    "configured": ("configured.py",),
    "hydra": ("hydra_job.py", "+lr=0.1", "hydra.job.chdir=True", "hydra.run.dir=run"),
    "module": ("-m", "package.train"),
    "spawned": ("spawned.py", "STORE"),
    "notebook": ("notebook.py",),
    "block": ("block.py",),
    **{name: ("loops.py", name) for name in LOOPS},
}
# These call the tool themselves.
BY_THEMSELVES = ("notebook", "block")
PLANTED = tuple(
    (name, cause)
    for name in ("trainer", "lightning", "accelerate")
    for cause in ("input", "evaluation", "sync")
    if (name, cause) != ("trainer", "sync")
)
PACKAGES = (
    "torch._dynamo",
    "transformers.models.bert.modeling_bert",
    "transformers.models.gpt2.modeling_gpt2",
    "transformers.trainer",
    "lightning",
    "accelerate",
    "sentence_transformers",
    "stable_baselines3",
    "torch_geometric.loader",
    "torch_geometric.nn",
    "hydra",
    "IPython.core.interactiveshell",
    "diagnose.commands.watch",
    "diagnose.measure.script.session",
)
SHORT = ("--seconds", "2", "--steps", "60", "--warmup", "2")
PLANTED_SECONDS = 4.0
LONGEST_SECONDS = 60.0


def run_job(folder: Path, name: str, mode: str) -> None:
    """In a process of its own, which leaves KEPT-<rank>.json, and found.json if it was watched."""
    from diagnose.commands.cli import main

    found = str(folder / "found.json")
    words = [str(folder / "store") if each == "STORE" else each for each in JOBS[name]]
    path = [] if words[0] == "-m" else [str(SCRIPTS / words[0])]
    os.chdir(folder if path else SCRIPTS)
    os.environ["KEPT"] = str(folder / "kept")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(SCRIPTS), os.environ.get("PYTHONPATH", "")])
    sys.path[0] = str(SCRIPTS)
    if mode == "watch" and name not in BY_THEMSELVES:
        code = main(["watch", "--json", found, *SHORT, *(path or ["-m"]), *words[1:]])
        if code:
            raise SystemExit(code)
        return
    sys.argv = [*(path or ["-m"]), *words[1:], *([found] if mode == "watch" else [])]
    if path:
        runpy.run_path(path[0], run_name="__main__")
    else:
        runpy.run_module(words[1], run_name="__main__")


def run_planted(folder: Path, name: str, cause: str) -> None:
    from tests.support.script_runs import diagnose_script

    os.chdir(folder)
    end, _, diagnosis = diagnose_script(SCRIPTS / JOBS[name][0], [cause], PLANTED_SECONDS)
    told = {**asdict(diagnosis), "record": None, "frames": end.frames, "stopped": end.stopped}
    (folder / "found.json").write_text(json.dumps(told))


def fork(folder: Path, action: Callable[[], None]) -> int:
    """The exit code of this action in a process of its own, whose words are in the folder."""
    folder.mkdir(parents=True)
    process = os.fork()
    if process:
        until = time.monotonic() + LONGEST_SECONDS
        while time.monotonic() < until:
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.01)
        os.kill(process, 9)
        os.waitpid(process, 0)
        return -9
    code = 99
    try:
        for stream, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT), stream)
        action()
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 98
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def main(folder: Path, names: Sequence[str]) -> None:
    planted = [f"{name}-{cause}" for name, cause in PLANTED]
    packages, names = {
        "jobs": (PACKAGES, list(JOBS)),
        "planted": (PACKAGES[: PACKAGES.index("sentence_transformers")], planted),
    }.get(names[0], ((), names))
    for each in packages:
        importlib.import_module(each)
    gc.freeze()
    codes: dict[str, int] = {}
    for name in JOBS:
        for mode in ("plain", "watch"):
            if name in names:
                place = folder / name / mode
                codes[f"{name}/{mode}"] = fork(place, lambda: run_job(place, name, mode))  # noqa: B023
    for name, cause in PLANTED:
        if f"{name}-{cause}" in names:
            place = folder / f"{name}-{cause}"
            codes[f"{name}-{cause}"] = fork(place, lambda: run_planted(place, name, cause))  # noqa: B023
    (folder / "codes.json").write_text(json.dumps(codes))


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), sys.argv[2:])
