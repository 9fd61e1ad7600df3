"""Which changes of this script are worth a window? Each as a variant that can be made and undone.

Only what was seen to take time is tried: every further window leaves fewer for the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from diagnose.measure.script.change.changes import (
    REPLAY,
    Variant,
    kept_memory,
    low_precision,
    other_optimizer,
    tensor_float,
)
from diagnose.measure.script.change.doubling import Doubling
from diagnose.measure.script.change.kept_values import KeptValues
from diagnose.measure.script.change.replay import MOST_KEPT, Feed, KeptCopies, join
from diagnose.measure.script.change.swaps import Swap, can_be_replayed
from diagnose.measure.script.watch.suspects import Group
from diagnose.records.script import Site, Suspect, doubled_name, replayed_name

if TYPE_CHECKING:
    from diagnose.measure.script.watch.observer import Observer

# What is below this share of a step is not worth a window of its own.
WORTH_TRYING = 0.02
MOST_SWAPS = 3
MOST_OPTIMIZERS = 2
MOST_DOUBLED = 2
# Runs of a line, or reads of a value, in one step: fewer are not worth a window of their own.
FEWEST_RUNS = 16

Seen = Sequence[tuple[Group, Suspect]]


class Candidates:
    """What could be changed in the script that an observer has watched."""

    def __init__(self, run: Observer) -> None:
        self._run = run
        self._seen: Seen = run.suspects()
        self._worth = WORTH_TRYING * run.typical_seconds()
        self._feeds = [each for each in run.training_feeds() if each.batches]
        self._loader_site = next((each.site for each in run.loaders()), None)
        self._values = KeptValues(run.sources, run.device)
        self._swaps = self._choose_swaps()
        run.feeds.choose(self._feeds)

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
        if not self._feeds or not all(join(each) for each in self._feeds):
            return None
        beside = replace(self._replayed(), name="replayed beside")
        joined = replace(
            beside,
            name="joined batches",
            cause="batch",
            what=f"{MOST_KEPT} kept batches were joined to one",
            begin=self._mode("join"),
            against=beside.name,
            samples=float(MOST_KEPT),
        )
        return joined, beside

    def doubled(self) -> dict[Variant, Doubling]:
        """Lines whose work is done twice, where their function cannot be replayed."""
        replayed = {id(suspect) for swap, suspect in self._swaps if swap.is_ready}
        anchors = self._run.spine().anchors
        found: dict[Variant, Doubling] = {}
        for group, suspect in sorted(self._seen, key=lambda pair: -pair[1].seconds):
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
                what=f"{suspect.site.function} did it twice",
                site=suspect.site,
                begin=doubling.begin,
                end=doubling.end,
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
            for group, suspect in self._seen
            if group.code is not None
            and suspect.seconds > self._worth
            and can_be_replayed(group.code)
        ]
        functions.sort(key=lambda pair: -pair[1].seconds)
        return [(Swap(code), suspect) for code, suspect in functions[:MOST_SWAPS]]

    def _seconds(self, phase: str) -> float:
        group = self._run.groups().get(phase)
        return group.seconds * self._run.per_step() if group is not None else 0.0

    def _about_batches(self) -> list[Variant]:
        copying = [each for _, each in self._seen if each.phase == "host" and each.copy_seconds]
        copies = sum(each.copy_seconds for each in copying)
        if not self._feeds or max(self._seconds("input"), copies) <= self._worth:
            return []
        if copies <= self._worth:
            return [self._replayed()]
        return [self._replayed(), self._kept_copies(copying)]

    def _about_optimizers(self) -> list[Variant | None]:
        if self._seconds("optimizer") <= self._worth:
            return []
        largest = sorted(self._run.boundary.optimizers, key=_tensors_of, reverse=True)
        return [
            other_optimizer(each, self._run.optimizer_site(each))
            for each in largest[:MOST_OPTIMIZERS]
        ]

    def _about_precision(self) -> list[Variant | None]:
        if self._run.autocast_spots:
            spot = self._run.autocast_spots.most_common(1)[0][0]
            autocast: Variant | None = Variant(
                name="no autocast",
                cause="precision",
                what="autocast was switched off",
                site=self._run.sources.site(spot),
                begin=self._run.autocast.switch_off,
                end=self._run.autocast.switch_on,
            )
        else:
            rates = self._run.ceilings()
            gain = rates.low_flops_per_second / max(1.0, rates.flops_per_second)
            autocast = low_precision(self._run.device, gain)
        return [autocast, tensor_float(self._run.device)]

    def _about_memory(self) -> Variant | None:
        site = self._largest_allocation() if self._run.device.is_cpu else None
        return kept_memory(site) if site is not None else None

    def _largest_allocation(self) -> Site | None:
        sizes = Counter[Any]()
        for step in self._run.map.steps:
            for place, line in step.lines.items():
                if place is not None and place.path:
                    sizes[place] += line.large_bytes
        best = max(sizes, key=lambda place: sizes[place], default=None)
        return self._run.sources.site_of(best) if best is not None and sizes[best] else None

    def _about_reads(self) -> Variant | None:
        """On the CPU a value is there at once; only reading very many takes time."""
        fewest = FEWEST_RUNS if self._run.device.is_cpu else 1
        reading = [each for _, each in self._seen if each.syncs >= fewest]
        if not reading:
            return None
        return Variant(
            name="kept values",
            cause="sync",
            what="reads gave back the values of an earlier step",
            site=max(reading, key=lambda each: each.syncs).site,
            begin=self._values.install,
            end=self._values.remove,
            uses=self._values.uses,
        )

    def _mode(self, name: Any) -> Callable[[], None]:
        return lambda: setattr(self._run.feeds, "mode", name)

    def _replayed(self) -> Variant:
        return Variant(
            name=REPLAY,
            cause="input",
            what="kept batches were handed out instead of the loader's",
            site=self._loader_site,
            begin=self._mode("replay"),
            end=self._mode(""),
            uses=self._run.feeds.count_served,
            settle=_steps_to_settle(self._feeds),
        )

    def _kept_copies(self, copying: Sequence[Suspect]) -> Variant:
        copies, replayed = KeptCopies(self._run.feeds), self._replayed()

        def begin() -> None:
            replayed.begin()
            copies.install()

        def end() -> None:
            copies.remove()
            replayed.end()

        return replace(
            replayed,
            name="kept copies",
            cause="transfer",
            what="conversions of replayed batches gave kept results",
            site=max(copying, key=lambda each: each.copy_seconds).site,
            begin=begin,
            end=end,
            against=REPLAY,
        )

    def _replayed_function(self, swap: Swap, suspect: Suspect) -> Variant:
        return Variant(
            name=replayed_name(suspect.key),
            cause="input" if suspect.feeds else "recompute" if suspect.repeats else "host",
            what=f"{suspect.site.function} gave back kept results",
            site=suspect.site,
            begin=swap.replay,
            end=swap.remove,
        )


def _steps_to_settle(feeds: Sequence[Feed]) -> int:
    """What workers have prepared during a window must be used up before the next."""
    if not any(each.workers for each in feeds):
        return 0
    return max(each.prefetched for each in feeds) + 1


def _tensors_of(optimizer: torch.optim.Optimizer) -> int:
    return sum(len(group["params"]) for group in optimizer.param_groups)
