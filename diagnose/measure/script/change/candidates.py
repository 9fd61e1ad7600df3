"""Which changes of this script are worth a window? Each as a variant that can be made and undone.

Only what was seen to take time is tried: every further window leaves fewer for the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch

from diagnose.measure.lines.source import Place
from diagnose.measure.script.change.changes import (
    REPLAY,
    Variant,
    kept_memory,
    low_precision,
    other_optimizer,
    tensor_float,
)
from diagnose.measure.script.change.doubling import Doubling
from diagnose.measure.script.change.kept import KeptCopies, KeptValues
from diagnose.measure.script.change.swaps import Swap, can_be_replayed
from diagnose.measure.script.patches import Patches
from diagnose.measure.script.watch.feeds import MOST_KEPT, Feed
from diagnose.measure.script.watch.seen import Picture
from diagnose.records.script import Ceilings, Site, Suspect, doubled_name, replayed_name

# What is below this share of a step is not worth a window of its own.
WORTH_TRYING = 0.02
MOST_SWAPS = 3
MOST_OPTIMIZERS = 2
MOST_DOUBLED = 2
# Runs of a line, or reads of a value, in one step: fewer are not worth a window of their own.
FEWEST_RUNS = 16


class Candidates:
    """What could be changed in a script of which this is known."""

    def __init__(self, picture: Picture, ceilings: Ceilings) -> None:
        self._picture = picture
        self._ceilings = ceilings
        self._device = picture.instruments.device
        self._origins = picture.instruments.origins
        self._batches = picture.instruments.feeds
        self._worth = WORTH_TRYING * picture.seen.typical_seconds
        self._feeds = [each for each in picture.feeds if each.batches]
        self._values = KeptValues(picture.sources, self._device)
        self._swaps = self._choose_swaps()
        self._batches.choose(self._feeds)

    @property
    def recorders(self) -> list[Swap | KeptValues]:
        """What has to record one step before it can replay it."""
        return [*(swap for swap, _ in self._swaps), self._values]

    def removals(self) -> list[Variant]:
        """Changes that take a suspected cause away."""
        found = [
            *self._about_batches(),
            *self._about_optimizers(),
            *self._about_precision(),
            self._about_memory(),
            self._about_reads(),
            *(self._replayed_function(*each) for each in self._swaps if each[0].is_ready),
        ]
        return [each for each in found if each is not None]

    def joined(self) -> tuple[Variant, Variant] | None:
        """Several batches as one, and beside it the same batches one by one."""
        if not self._feeds or not all(each.join() for each in self._feeds):
            return None
        beside = replace(self._replayed(), name="replayed beside")
        joined = replace(
            beside,
            name="joined batches",
            cause="batch",
            what=f"{MOST_KEPT} batches kept in memory were trained on as one",
            begin=partial(self._batches.serve, mode="join"),
            against=beside.name,
            samples=float(MOST_KEPT),
        )
        return joined, beside

    def doubled(self) -> dict[Variant, Doubling]:
        """Lines whose work is done twice, where their function cannot be replayed."""
        replayed = {id(suspect) for swap, suspect in self._swaps if swap.is_ready}
        anchors = self._picture.spine.anchors
        found: dict[Variant, Doubling] = {}
        for group, suspect in sorted(self._picture.suspects, key=lambda pair: -pair[1].seconds):
            if len(found) == MOST_DOUBLED:
                break
            spot = group.hottest
            if spot is None or id(suspect) in replayed or not self._is_odd(suspect):
                continue
            doubling = Doubling(spot.code, spot.line, anchors.get(spot.code, ()))
            if doubling.refused:
                continue
            share = group.share_of(spot.code.co_filename, doubling.lines)
            if not share:
                continue  # it was not seen at work itself
            variant = Variant(
                name=doubled_name(suspect.key),
                cause="host",
                what=f"the line ran twice in {suspect.site.function}, to see what that adds",
                site=suspect.site,
                begin=doubling.begin,
                uses=doubling.uses,
                doubles=share,
            )
            found[variant] = doubling
        return found

    def _is_odd(self, suspect: Suspect) -> bool:
        """Work that could be a cause: many runs of a line, many reads, or mostly Python."""
        if suspect.phase not in ("host", "forward", "input") or suspect.seconds < self._worth:
            return False
        many = max(suspect.trips, suspect.syncs) >= FEWEST_RUNS
        return many or suspect.operator_seconds < suspect.seconds / 2

    def _choose_swaps(self) -> list[tuple[Swap, Suspect]]:
        functions = [
            (group.code, suspect)
            for group, suspect in self._picture.suspects
            if group.code is not None
            and suspect.seconds > self._worth
            and can_be_replayed(group.code)
        ]
        functions.sort(key=lambda pair: -pair[1].seconds)
        return [(Swap(code), suspect) for code, suspect in functions[:MOST_SWAPS]]

    def _about_batches(self) -> list[Variant]:
        copying = [
            each for _, each in self._picture.suspects if each.phase == "host" and each.copy_seconds
        ]
        copies = sum(each.copy_seconds for each in copying)
        if not self._feeds or max(self._picture.seconds_of("input"), copies) <= self._worth:
            return []
        if copies <= self._worth:
            return [self._replayed()]
        return [self._replayed(), self._kept_copies(copying)]

    def _about_optimizers(self) -> list[Variant | None]:
        if self._picture.seconds_of("optimizer") <= self._worth:
            return []
        optimizers = self._picture.instruments.boundary.optimizers
        largest = sorted(optimizers, key=_tensors_of, reverse=True)
        return [
            other_optimizer(each, self._picture.optimizer_site(each))
            for each in largest[:MOST_OPTIMIZERS]
        ]

    def _about_precision(self) -> list[Variant | None]:
        entered = self._picture.seen.autocast
        if not entered:
            gain = self._ceilings.low_flops_per_second / max(1.0, self._ceilings.flops_per_second)
            return [low_precision(self._device, gain), tensor_float(self._device)]
        off = Variant(
            name="no autocast",
            cause="precision",
            what="autocast was switched off",
            site=self._picture.site(entered.most_common(1)[0][0]),
            begin=self._origins.switch_autocast_off,
        )
        return [off, tensor_float(self._device)]

    def _about_memory(self) -> Variant | None:
        site = self._largest_allocation() if self._device.is_cpu else None
        return kept_memory(site) if site is not None else None

    def _largest_allocation(self) -> Site | None:
        sizes = Counter[Place]()
        for step in self._picture.seen.works:
            for place, line in step.lines.items():
                if place is not None and place.path:
                    sizes[place] += line.large_bytes
        best = max(sizes, key=lambda place: sizes[place], default=None)
        return self._picture.sources.site_of(best) if best is not None and sizes[best] else None

    def _about_reads(self) -> Variant | None:
        """On the CPU a value is there at once; only reading very many takes time."""
        fewest = FEWEST_RUNS if self._device.is_cpu else 1
        reading = [each for _, each in self._picture.suspects if each.syncs >= fewest]
        if not reading:
            return None
        return Variant(
            name="kept values",
            cause="sync",
            what="values of an earlier step were used instead of reading new ones",
            site=max(reading, key=lambda each: each.syncs).site,
            begin=self._values.replay,
            uses=self._values.uses,
        )

    def _replayed(self) -> Variant:
        return Variant(
            name=REPLAY,
            cause="input",
            what="batches kept in memory were used instead of the loader's",
            site=next((each.site for each in self._picture.loaders), None),
            begin=partial(self._batches.serve, mode="replay"),
            uses=self._batches.count_served,
            settle=_steps_to_settle(self._feeds),
        )

    def _kept_copies(self, copying: Sequence[Suspect]) -> Variant:
        copies, replayed = KeptCopies(self._batches), self._replayed()

        def begin(patches: Patches) -> None:
            replayed.begin(patches)
            copies.replay(patches)

        return replace(
            replayed,
            name="kept copies",
            cause="transfer",
            what="batches kept in memory were used that had already been converted",
            site=max(copying, key=lambda each: each.copy_seconds).site,
            begin=begin,
            against=REPLAY,
        )

    def _replayed_function(self, swap: Swap, suspect: Suspect) -> Variant:
        return Variant(
            name=replayed_name(suspect.key),
            cause="input" if suspect.feeds else "recompute" if suspect.repeats else "host",
            what=f"{suspect.site.function} returned its results of an earlier step",
            site=suspect.site,
            begin=swap.replay,
        )


def _steps_to_settle(feeds: Sequence[Feed]) -> int:
    """What workers have prepared during a window must be used up before the next."""
    if not any(each.workers for each in feeds):
        return 0
    return max(each.prefetched for each in feeds) + 1


def _tensors_of(optimizer: torch.optim.Optimizer) -> int:
    return sum(len(group["params"]) for group in optimizer.param_groups)
