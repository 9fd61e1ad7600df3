"""What was seen of a script? Plain notes of its steps, and the picture that they make."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from diagnose.measure.machine.device import Device, open_visible_device
from diagnose.measure.script.patches import Patches
from diagnose.measure.script.watch.boundary import (
    MODEL_CALL,
    OPTIMIZER_STEP,
    Boundary,
    Forwards,
)
from diagnose.measure.script.watch.cards import Clocks, note_idle_devices
from diagnose.measure.script.watch.growth import Growing
from diagnose.measure.script.watch.origins import Feed, Feeds, Origins
from diagnose.measure.script.watch.slow import StepNotes
from diagnose.measure.script.watch.stacks import Seconds, Stacks, add_seconds
from diagnose.measure.script.watch.suspects import Group, Judge, Spine, group_samples
from diagnose.measure.script.watch.where import Sources, Spot, block_around
from diagnose.measure.script.watch.work import StepWork
from diagnose.records.header import Reading
from diagnose.records.script import (
    Activity,
    Ceilings,
    Change,
    Loader,
    Occasion,
    Phase,
    Site,
    Suspect,
    Window,
)


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
    notes: StepNotes

    @cached_property
    def device(self) -> Device:
        """That of the parameters. Not before the first step: until then the script may choose."""
        return open_visible_device(each.device for each in self.boundary.weights())

    @cached_property
    def clocks(self) -> Clocks:
        """Of the card, from the first plain step on."""
        return Clocks(self.device)

    def weights(self) -> Iterator[torch.Tensor]:
        """Of all that is trained."""
        yield from self.boundary.weights()
        for model in self.stacks.models:
            yield from model.parameters()

    def note_end_of_step(self) -> None:
        """Of a sampled one."""
        self.stacks.note_end_of_step()
        self.origins.steps += 1

    def describe_steps(self, seconds: float) -> list[str]:
        """What a step is where that is not plain to see; `seconds` is what one takes."""
        boundary, origins = self.boundary, self.origins
        if boundary.kind not in ("", OPTIMIZER_STEP, MODEL_CALL):
            return [f"a step is a {boundary.kind}, not a call of the model"]
        updates = max(1, len(boundary.optimizers))
        passes = round(origins.backward_calls / max(1, origins.steps) / updates)
        if passes < 2:
            return []
        each = 1e3 * seconds / passes / updates
        return [
            f"a step is an optimizer step with {passes} backward passes before it (gradients are "
            f"accumulated, or it calls a closure): {each:.3g} ms for each of them"
        ]


# Samples of the first rounds are held against later ones: what grows is found by that.
EARLY_ROUNDS = 2
# What is below this share of a step is not worth a window of its own.
WORTH_TRYING = 0.02
MOST_PREFIXES = 2000
_DOING = {
    "warm-up": "warming up",
    "plain": "timing unchanged steps",
    "sampled": "sampling lines",
    "mapped": "counting operators",
    "traced": "keeping a trace",
    "tried": "about to try changes",
}
# Bytes are counted in the forward pass; the backward pass moves about twice as many.
FORWARD_AND_BACKWARD = 3
NO_STEPS = Reading(None, "no step was timed")


def _seconds() -> Seconds:
    return defaultdict(float)


@dataclass
class Seen:
    """Notes of all steps; whoever judges reads them, and only the passes write them."""

    stage: str = "start"
    steps: int = 0
    step_seconds: float = 0.0  # of the last one
    warm_up: list[float] = field(default_factory=list)  # seconds of its steps
    warming: Seconds = field(default_factory=_seconds)  # and their samples
    plain: list[float] = field(default_factory=list)
    busy: Reading = NO_STEPS  # the share of them in which the device works
    all_plain: list[tuple[int, float]] = field(default_factory=list)  # with the unchanged windows
    hook_seconds: list[float] = field(default_factory=list)
    # Samples of the sampled steps and unchanged windows: of the first rounds, and of all later.
    early: Seconds = field(default_factory=_seconds)
    late: Seconds = field(default_factory=_seconds)
    early_steps: int = 0
    late_steps: int = 0
    sampled_seconds: float = 0.0
    # Sums of the numbers of these steps: what grows does so from the ones to the others.
    early_at: int = 0
    late_at: int = 0
    began: float = 0.0  # when the first step ended
    ended: float = 0.0  # and the last
    prefix: int = 0  # positions that the model was just given
    prefix_spot: Spot | None = None  # where it is called
    prefixes: list[tuple[int, float]] = field(default_factory=list)  # with the seconds of the call
    memory: list[tuple[int, int]] = field(default_factory=list)  # step and bytes
    grown: list[Growing] = field(default_factory=list)
    ends: set[Spot] = field(default_factory=set)  # on the stack where a step ends
    marks: set[tuple[Spot, ...]] = field(default_factory=set)  # and where a model is evaluated
    autocast: Counter[Spot] = field(default_factory=Counter)
    training_calls: int = 0  # in all steps
    training_rows: int = 0  # that they were given
    rows: Counter[int] = field(default_factory=Counter)  # by model, in sampled steps
    works: list[StepWork] = field(default_factory=list)  # mapped steps
    unmapped: str = ""  # why no step was mapped
    retries: float = 0.0  # of the allocator, in a plain step
    activity: Activity | None = None  # of the device
    inactive: str = ""  # why that was not seen
    tried: list[str] = field(default_factory=list)  # changes begun so far, in the user's words
    item_spot: Spot | None = None  # the hottest line of what a loader's workers do
    ceilings: Ceilings | None = None
    windows: list[Window] = field(default_factory=list)
    changes: dict[str, Change] = field(default_factory=dict)  # by the name of the variant
    occasions: dict[str, Occasion] = field(default_factory=dict)
    fault: str = ""  # of this suite itself
    watched: str = ""  # why nothing was changed
    remarks: list[str] = field(default_factory=list)  # what a reader should know
    failed: str = ""  # how the script failed after a change

    def note_end(self, now: float) -> None:
        """Of a step; nothing here may take time."""
        self.began = self.began or now
        self.ended = now
        self.note_prefix(self.step_seconds)

    def note_prefix(self, seconds: float) -> None:
        """What the call took that the prefix was given to."""
        # A step that is mapped or changed takes other times.
        counts = self.prefix and self.stage in ("plain", "sampled")
        if counts and len(self.prefixes) < MOST_PREFIXES:
            self.prefixes.append((self.prefix, seconds))
        self.prefix = 0

    def samples_of(self, round_number: int) -> Seconds:
        return self.early if round_number < EARLY_ROUNDS else self.late

    def count_sampled(self, into: Seconds) -> None:
        """The step that just ended was sampled."""
        if into is self.early:
            self.early_steps += 1
            self.early_at += self.steps
        else:
            self.late_steps += 1
            self.late_at += self.steps
        self.sampled_seconds += self.step_seconds

    def note_rows(
        self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """What a model is given to learn from; a loss is given what a model has made."""
        tensors = (leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor))
        first = next(tensors, None)
        if first is not None and first.dim() and first.grad_fn is None:
            self.training_rows += first.shape[0]
            if self.stage == "sampled":  # rows per step are those of the sampled steps
                self.rows[id(module)] += first.shape[0]

    @property
    def doing(self) -> str:
        return _DOING.get(self.stage, "looking for steps")

    @property
    def timed(self) -> list[float]:
        """Seconds of plain steps; where a script ended before them, of its warm-up but the first
        of all.
        """
        return self.plain or self.warm_up[1:] or self.warm_up

    @property
    def typical_seconds(self) -> float:
        timed = self.timed
        return sum(timed) / len(timed) if timed else self.step_seconds

    @property
    def samples(self) -> Seconds:
        """Of all steps that were sampled; of the warm-up where there are no others."""
        return add_seconds(self.early, self.late) if self.sampled_seconds else self.warming

    @property
    def per_step(self) -> float:
        """Turns seconds of samples into those of one plain step.

        Sampling slows a step down a little, and a shared machine changes its mind.
        """
        sampled = self.sampled_seconds or sum(self.warm_up)
        return self.typical_seconds / sampled if sampled else 0.0


class Picture:
    """What the notes of this moment add up to."""

    def __init__(self, seen: Seen, instruments: Instruments) -> None:
        self.seen = seen
        self.instruments = instruments
        self.sources = instruments.sources

    @cached_property
    def spine(self) -> Spine:
        seen = self.seen
        return Spine(seen.ends, seen.samples, sorted(seen.marks, key=str), seen.works)

    @cached_property
    def groups(self) -> dict[str, Group]:
        groups = group_samples(self.seen.samples, self.spine)
        if "input" in groups:
            spots = (each.spot for each in self.feeds if each.spot is not None)
            groups["input"].name_if_hidden(self.seen.item_spot or next(spots, None))
        if "optimizer" in groups:
            first = self.instruments.boundary.optimizer
            groups["optimizer"].name_if_hidden(self.instruments.origins.optimizer_spot(first))
        return groups

    @cached_property
    def suspects(self) -> list[tuple[Group, Suspect]]:
        judge = Judge(self.sources, self.seen.works, self.seen.per_step, self.spine.anchors)
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
            if feed.evaluates > feed.trains:
                continue
            for way in feed.ways:
                # A generator of the user's may hand the batches on to the loop.
                spot = next((each for each in way if each.code in anchors), None)
                # A framework trains and evaluates in one line of the user's.
                marked = any(spot in mark for mark in self.seen.marks)
                if spot is not None and (feed.evaluates or not marked):
                    block = block_around(spot, ())
                    free = block_around(spot, anchors[spot.code])
                    if block is None or free is None or block != free:
                        found.append(feed)
                        break
        return found

    @property
    def loaders(self) -> tuple[Loader, ...]:
        return tuple(
            Loader(
                self.site(feed.spot),
                feed.workers,
                feed.batch_size,
                feed.batch_seconds,
                len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0,
            )
            for feed in self.feeds
        )

    @property
    def phases(self) -> dict[Phase, float]:
        found: dict[Phase, float] = defaultdict(float)
        for group in self.groups.values():
            found[group.phase] += group.seconds * self.seen.per_step
        return found

    @property
    def is_mostly_overhead(self) -> bool:
        """Whether arithmetic and bytes explain less than half of what is done with a batch."""
        seen, ceilings = self.seen, self.seen.ceilings
        if not seen.works or ceilings is None or not ceilings.flops_per_second:
            return False
        lines = [line for step in seen.works for line in step.lines.values()]
        flops = sum(line.flops for line in lines) / len(seen.works)
        moved = FORWARD_AND_BACKWARD * sum(line.streamed_bytes for line in lines) / len(seen.works)
        needed = flops / ceilings.flops_per_second
        if ceilings.bytes_per_second:
            needed = max(needed, moved / ceilings.bytes_per_second)
        return needed < (seen.typical_seconds - self.seconds_of("input")) / 2

    @property
    def worth_trying(self) -> float:
        """Seconds of a step."""
        return WORTH_TRYING * self.seen.typical_seconds

    def is_worth(self, key: str) -> bool:
        return self.seconds_of(key) > self.worth_trying

    def seconds_of(self, key: str) -> float:
        """Of one step, in the group of this key."""
        group = self.groups.get(key)
        return group.seconds * self.seen.per_step if group is not None else 0.0

    def device_notes(self) -> list[str]:
        """What a reader should know of the devices; nothing before the first step."""
        if not self.seen.plain:
            return []
        watch = self.instruments
        why = self.seen.inactive and f"the device's own time is not known: {self.seen.inactive}"
        return [
            each for each in (note_idle_devices(watch.device), watch.clocks.note(), why) if each
        ]

    @property
    def leading(self) -> str:
        """Where most of the time passes that is not the model's own."""
        own = ("forward", "backward", "optimizer")
        found = [each for _, each in self.suspects if each.phase not in own]
        most = max(found, key=lambda each: each.seconds, default=None)
        if most is None or most.seconds < self.worth_trying:
            return ""
        return f"leading: {most.phase} {most.site.file}:{most.site.line}"

    def site(self, spot: Spot | None) -> Site | None:
        return self.sources.site(spot) if spot is not None else None

    def optimizer_site(self, optimizer: torch.optim.Optimizer) -> Site | None:
        return self.site(self.instruments.origins.optimizer_spot(optimizer))

    def backward_site(self) -> Site | None:
        group = self.groups.get("backward")
        return self.site(group.hottest) if group is not None else None
