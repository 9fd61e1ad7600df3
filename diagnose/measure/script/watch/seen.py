"""What was seen of a script? Plain notes of its steps, and the picture that they make."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from diagnose.measure.machine.device import Device, open_visible_device
from diagnose.measure.script.patches import Patches
from diagnose.measure.script.watch.boundary import Boundary, Forwards
from diagnose.measure.script.watch.growth import Growing
from diagnose.measure.script.watch.origins import Feed, Feeds, Origins
from diagnose.measure.script.watch.stacks import Seconds, Stacks, add_seconds
from diagnose.measure.script.watch.suspects import Group, Judge, Spine, group_samples
from diagnose.measure.script.watch.where import Sources, Spot, block_around
from diagnose.measure.script.watch.work import StepWork
from diagnose.records.header import Reading
from diagnose.records.script import Ceilings, Change, Loader, Occasion, Phase, Site, Suspect, Window


@dataclass(frozen=True)
class Instruments:
    """Everything that looks at the script, and the patches that it goes through."""

    patches: Patches
    sources: Sources
    forwards: Forwards
    boundary: Boundary
    feeds: Feeds
    origins: Origins
    stacks: Stacks

    @cached_property
    def device(self) -> Device:
        """Not before the first step: until then the script may choose its devices."""
        return open_visible_device()


NO_STEPS = Reading(None, "no step was timed")


def _seconds() -> Seconds:
    return defaultdict(float)


@dataclass
class Seen:
    """Notes of all steps; whoever judges reads them, and only the passes write them."""

    stage: str = "start"
    steps: int = 0
    step_seconds: float = 0.0  # of the last one
    plain: list[float] = field(default_factory=list)
    busy: Reading = NO_STEPS  # the share of them in which the device works
    all_plain: list[tuple[int, float]] = field(default_factory=list)  # with the unchanged windows
    hook_seconds: list[float] = field(default_factory=list)
    # Samples of the sampled steps, and of the unchanged windows later on.
    early: Seconds = field(default_factory=_seconds)
    late: Seconds = field(default_factory=_seconds)
    early_steps: int = 0
    late_steps: int = 0
    sampled_seconds: float = 0.0
    memory: list[tuple[int, int]] = field(default_factory=list)  # step and bytes
    grown: list[Growing] = field(default_factory=list)
    ends: set[Spot] = field(default_factory=set)  # on the stack where a step ends
    marks: set[tuple[Spot, ...]] = field(default_factory=set)  # and where a model is evaluated
    autocast: Counter[Spot] = field(default_factory=Counter)
    trained_calls: int = 0  # in sampled steps
    training_calls: int = 0  # in all steps
    rows: Counter[int] = field(default_factory=Counter)  # by model, in sampled steps
    works: list[StepWork] = field(default_factory=list)  # mapped steps
    unmapped: str = ""  # why no step was mapped
    tried: list[str] = field(default_factory=list)  # changes begun so far, in the user's words
    item_spot: Spot | None = None  # the hottest line of what a loader's workers do
    ceilings: Ceilings | None = None
    windows: list[Window] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    occasions: list[Occasion] = field(default_factory=list)
    fault: str = ""  # of this suite itself
    watched: str = ""  # why nothing was changed
    failed: str = ""  # how the script failed after a change

    def note_rows(
        self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """What a model is given to learn from; a loss is given what a model has made."""
        tensors = (leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor))
        first = next(tensors, None)
        if first is not None and first.dim() and first.grad_fn is None:
            self.rows[id(module)] += first.shape[0]

    @property
    def typical_seconds(self) -> float:
        return sum(self.plain) / len(self.plain) if self.plain else self.step_seconds

    @property
    def trained_calls_per_step(self) -> int:
        return round(self.trained_calls / self.early_steps) if self.early_steps else 0

    @property
    def per_step(self) -> float:
        """Turns seconds of samples into those of one plain step.

        Sampling slows a step down a little, and a shared machine changes its mind.
        """
        return self.typical_seconds / self.sampled_seconds if self.sampled_seconds else 0.0


class Picture:
    """What the notes of this moment add up to."""

    def __init__(self, seen: Seen, instruments: Instruments) -> None:
        self.seen = seen
        self.instruments = instruments
        self.sources = instruments.sources

    @cached_property
    def spine(self) -> Spine:
        seen = self.seen
        samples = add_seconds(seen.early, seen.late)
        return Spine(seen.ends, samples, sorted(seen.marks, key=str), seen.works)

    @cached_property
    def groups(self) -> dict[str, Group]:
        groups = group_samples(add_seconds(self.seen.early, self.seen.late), self.spine)
        if "input" in groups:
            spots = (each.spot for each in self.feeds if each.spot is not None)
            groups["input"].name_if_hidden(self.seen.item_spot or next(spots, None))
        if "optimizer" in groups:
            first = self.instruments.boundary.optimizer
            groups["optimizer"].name_if_hidden(self.instruments.origins.optimizer_spot(first))
        return groups

    @cached_property
    def suspects(self) -> list[tuple[Group, Suspect]]:
        judge = Judge(self.sources, self.seen.works, self.seen.per_step)
        backward = self.seconds_of("backward")
        parts = [part for group in self.groups.values() for part in judge.split(group)]
        found = [(group, judge.suspect(group, backward)) for group in parts]
        return [(group, suspect) for group, suspect in found if suspect is not None]

    @cached_property
    def feeds(self) -> list[Feed]:
        """Loaders that the spine iterates over in the loop of its steps."""
        anchors = self.spine.anchors
        found = []
        for feed in self.instruments.feeds.feeds.values():
            for spot in feed.callers:
                if spot.code in anchors and not any(spot in mark for mark in self.seen.marks):
                    block = block_around(spot, ())
                    free = block_around(spot, anchors[spot.code])
                    if block is None or free is None or block != free:
                        found.append(feed)
                        break
        return found

    @property
    def loaders(self) -> tuple[Loader, ...]:
        return tuple(
            Loader(self.site(feed.spot), feed.workers, feed.batch_size) for feed in self.feeds
        )

    @property
    def phases(self) -> dict[Phase, float]:
        found: dict[Phase, float] = defaultdict(float)
        for group in self.groups.values():
            found[group.phase] += group.seconds * self.seen.per_step
        return found

    def seconds_of(self, key: str) -> float:
        """Of one step, in the group of this key."""
        group = self.groups.get(key)
        return group.seconds * self.seen.per_step if group is not None else 0.0

    def site(self, spot: Spot | None) -> Site | None:
        return self.sources.site(spot) if spot is not None else None

    def optimizer_site(self, optimizer: torch.optim.Optimizer) -> Site | None:
        return self.site(self.instruments.origins.optimizer_spot(optimizer))

    def backward_site(self) -> Site | None:
        group = self.groups.get("backward")
        return self.site(group.hottest) if group is not None else None
