"""How do run trackers not hear of a throw-away run? They are switched offline, as each documents.

Variables go to the process that runs the script. What a script says in its code counts more than
those, so the calls that could go online are changed too, once their library is imported.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from diagnose.measure.script.patches import Patches

# Values of the user's own that send nothing anyway.
SILENT = ("offline", "disabled", "dryrun", "debug", "read-only")
LOCAL = ("", "file", "sqlite")
REFUSED = (
    "this is a throw-away run of diagnose, which pushes nothing to the Hugging Face hub; take "
    "the push out of the script to diagnose it, or use `diagnose watch`"
)
PUSHES = ("upload_", "create_", "delete_", "move_", "update_", "super_squash_", "preupload_")


def tracker_variables(folder: Path) -> dict[str, str]:
    """Offline, and into this folder."""
    modes = {
        name: "offline"
        for name in ("WANDB_MODE", "NEPTUNE_MODE", "SWANLAB_MODE")
        if os.environ.get(name, "") not in SILENT[:-1]
    }
    return {
        **modes,
        "WANDB_DIR": str(folder),
        "NEPTUNE_LOG_DIRECTORY": str(folder / "neptune"),
        "NEPTUNE_DATA_DIRECTORY": str(folder),
        "MLFLOW_TRACKING_URI": (folder / "mlruns").as_uri(),
        "MLFLOW_ALLOW_FILE_STORE": "true",
        "COMET_START_ONLINE": "0",
        "COMET_MODE": "offline",
        "COMET_OFFLINE_DIRECTORY": str(folder / "comet"),
        "CLEARML_OFFLINE_MODE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }


def _keep_offline(function: str, option: str, value: Any) -> Callable[[Patches, ModuleType], None]:
    """For a library whose `function` would go online if `option` said so."""

    def change(patches: Patches, module: ModuleType) -> None:
        def offline(original: Callable[..., Any]) -> Callable[..., Any]:
            def call(*words: Any, **options: Any) -> Any:
                if options.get(option, value) not in SILENT:
                    options[option] = value
                return original(*words, **options)

            return call

        if hasattr(module, function):
            patches.put(module, function, offline)

    return change


def _keep_comet_offline(patches: Patches, comet: ModuleType) -> None:
    """Its classes have counterparts that write files, which take no key."""
    _keep_offline("start", "online", False)(patches, comet)
    for name in ("Experiment", "ExistingExperiment"):
        kind = getattr(comet, name.replace("Exp", "OfflineExp"), None)
        if kind is not None and hasattr(comet, name):
            patches.set(comet, name, _without_key(kind))


def _without_key(kind: Any) -> type:
    class Offline(kind):  # type: ignore[misc]
        def __init__(self, api_key: object = None, *words: Any, **options: Any) -> None:
            super().__init__(*words, **options)

    return Offline


def _keep_local(patches: Patches, mlflow_utils: ModuleType) -> None:
    def local(original: Callable[..., Any]) -> Callable[..., Any]:
        def resolve(uri: Any = None) -> Any:
            scheme = str(uri or "").partition(":")[0] if ":" in str(uri or "") else ""
            return original(uri if scheme in LOCAL else os.environ["MLFLOW_TRACKING_URI"])

        return resolve

    patches.put(mlflow_utils, "set_tracking_uri", local)
    patches.put(mlflow_utils, "_resolve_tracking_uri", local)


def _refuse_pushes(patches: Patches, hub: ModuleType) -> None:
    def refuse(*words: Any, **options: Any) -> Any:
        raise RuntimeError(REFUSED)

    for name in [name for name in vars(hub.HfApi) if name.startswith(PUSHES)]:
        patches.set(hub.HfApi, name, refuse)
        if hasattr(hub, name):  # the same of an instance that the module has made
            patches.set(hub, name, refuse)


TRACKERS: Mapping[str, Callable[[Patches, ModuleType], None]] = {
    "wandb": _keep_offline("init", "mode", "offline"),
    "neptune": _keep_offline("init_run", "mode", "offline"),
    "comet_ml": _keep_comet_offline,
    "mlflow.tracking._tracking_service.utils": _keep_local,
    "huggingface_hub.hf_api": _refuse_pushes,
}
