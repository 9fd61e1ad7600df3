"""How is the recurrent model trained? Every setting that the ladder changes, one field each."""

from __future__ import annotations

from dataclasses import dataclass

from diagnose.workload import Size, WorkloadError

COMPILE_MODES = ("", "default", "max-autotune")

SEQUENCES = (7, 14, 30, 60, 90)  # days that the model looks back
HIDDEN = (64, 128, 256, 512)


@dataclass(frozen=True)
class Settings:
    """A training run. The defaults are the job before anything was done for its speed.

    Values are plain text and numbers: `Settings(**mapping)` and `dataclasses.asdict` are inverse.
    """

    batch_size: int = 128  # windows in one forward pass
    hidden: int = 64
    layers: int = 2
    sequence: int = 30
    dropout: float = 0.2
    learning_rate: float = 1e-3
    workers: int = 0
    prefetch: int = 2  # batches that each worker prepares ahead; nothing is without workers
    keep_workers: bool = False  # else they are started anew for every epoch
    compile: str = ""  # one of COMPILE_MODES
    set_to_none: bool = False
    # Predictions stay on the device until the last batch; else each batch is moved to the host.
    evaluate_on_device: bool = False
    accumulate: int = 1  # batches whose gradients one optimiser step uses
    amp: bool = False  # float16 with a gradient scaler on CUDA, bfloat16 elsewhere
    tf32: bool = False
    fused_lstm: bool = True  # else a Python loop over layers and days, with the same weights

    def __post_init__(self) -> None:
        for name in ("batch_size", "hidden", "layers", "sequence", "prefetch", "accumulate"):
            if getattr(self, name) < 1:
                raise WorkloadError(f"{name} is {getattr(self, name)}; it must be 1 or more")
        if self.compile not in COMPILE_MODES:
            raise WorkloadError(
                f"compile is '{self.compile}'; it must be empty, default or max-autotune"
            )

    @classmethod
    def from_size(cls, size: Size) -> Settings:
        assert size.sequence_length is not None
        return cls(
            batch_size=size.batch_size,
            sequence=size.sequence_length,
            hidden=size.shape["hidden"],
            layers=size.shape["layers"],
        )
