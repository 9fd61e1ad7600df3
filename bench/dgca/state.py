"""What does training change? The parameters, the optimiser and the random states: all of it here.

A checkpoint is exactly this; whatever is not in here follows from the recipe and the step.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

# Every process draws its own dropout and its own masks, and none of them those of another run.
_SEED_STRIDE = 10_007


@dataclass
class TrainingState:
    """The one thing here that is not frozen."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler  # a disabled one does nothing
    masking: torch.Generator  # on the device of the model, for --mft
    device: torch.device
    step: int = 0  # optimiser steps tried so far, also the place in the order of the data
    nonfinite_losses: int = 0
    skipped_steps: int = 0


def start_training(
    model: nn.Module, learning_rate: float, half: bool, fused: bool, device: torch.device
) -> TrainingState:
    """Step 0. float16 needs its losses scaled; bfloat16, which the CPU uses, has the range."""
    trained = [each for each in model.parameters() if each.requires_grad]
    return TrainingState(
        model=model,
        optimizer=torch.optim.AdamW(trained, lr=learning_rate, fused=fused or None),
        scaler=torch.amp.GradScaler(device.type, enabled=half and device.type == "cuda"),
        masking=torch.Generator(device),
        device=device,
    )


def seed_rank(state: TrainingState, seed: int, rank: int) -> None:
    own = seed * _SEED_STRIDE + rank
    torch.manual_seed(own)
    state.masking.manual_seed(own)


def read_random_states(state: TrainingState) -> dict[str, Tensor]:
    states = {"cpu": torch.get_rng_state(), "masking": state.masking.get_state()}
    if state.device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(state.device)
    return states


def restore_random_states(state: TrainingState, states: Mapping[str, Tensor]) -> None:
    torch.set_rng_state(states["cpu"])
    state.masking.set_state(states["masking"])
    if state.device.type == "cuda":
        torch.cuda.set_rng_state(states["cuda"], state.device)


def keep_random_states(device: torch.device) -> AbstractContextManager[None]:
    """Whatever is drawn inside the block has not been drawn after it."""
    devices = [device] if device.type == "cuda" else []
    context: AbstractContextManager[None] = torch.random.fork_rng(devices=devices)
    return context
