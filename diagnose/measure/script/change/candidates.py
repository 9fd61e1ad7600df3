"""What can be changed in this script between two steps, and which changes are worth a window?

Each change is one suspected cause removed; none needs the script's consent, and each says what it
does. Only what was seen to take time is tried: every further window leaves fewer for the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch

from diagnose.measure.lines.source import Place
from diagnose.measure.machine.allocator import keep_freed_memory, return_large_blocks
from diagnose.measure.script.change.doubling import Doubling
from diagnose.measure.script.change.exchanges import Replicas
from diagnose.measure.script.change.stand_ins import (
    KeptCopies,
    KeptValues,
    Swap,
    can_be_replayed,
)
from diagnose.measure.script.change.variant import Variant, choose_together
from diagnose.measure.script.patches import Patches
from diagnose.measure.script.ranks import Ranks
from diagnose.measure.script.watch.origins import MOST_KEPT, Feed
from diagnose.measure.script.watch.seen import Picture
from diagnose.records.script import (
    Site,
    Suspect,
    doubled_name,
    replayed_name,
)

# What is below this share of a step is not worth a window of its own.
WORTH_TRYING = 0.02
MOST_SWAPS = 3
MOST_OPTIMIZERS = 2
MOST_DOUBLED = 2
# Runs of a line, or reads of a value, in one step: fewer are not worth a window of their own.
FEWEST_RUNS = 16
REPLAY, KEPT_COPIES = "replayed batches", "kept copies"


def other_optimizer(
    optimizer: torch.optim.Optimizer, site: Site | None, place: int
) -> Variant | None:
    """The same update by fewer operators, if this optimizer has such a form."""
    groups = optimizer.param_groups
    parameters = [each for group in groups for each in group["params"]]
    usable = all(
        each.is_floating_point() and (each.grad is None or each.grad.layout is torch.strided)
        for each in parameters
    )
    blocked = any(group.get("differentiable") or group.get("capturable") for group in groups)
    if not usable or blocked or any(group.get("fused") for group in groups):
        return None
    form = next((name for name in ("fused", "foreach") if name in groups[0]), None)
    if form is None or all(group.get(form) for group in groups):
        return None

    def begin(patches: Patches) -> None:
        for group in groups:
            for name in ("fused", "foreach"):
                patches.set_item(group, name, name == form)

    return Variant(
        name=f"optimizer {form} {place}",
        cause="optimizer",
        what=f"{form}=True in {type(optimizer).__name__}",
        site=site,
        begin=begin,
    )


def kept_memory(site: Site) -> Variant:
    """On the CPU only: accelerators keep freed memory anyway."""

    def begin(patches: Patches) -> None:
        # Where the C library does not do it, nothing changes and nothing is found.
        keep_freed_memory()
        patches.on_undo(return_large_blocks)

    return Variant(
        name="kept memory",
        cause="allocation",
        what="freed memory was kept for the next tensor instead of going back to the system",
        site=site,
        begin=begin,
        settle=2,
    )


class Candidates:
    """What could be changed in a script of which this is known."""

    def __init__(self, picture: Picture, ranks: Ranks) -> None:
        self._picture = picture
        self._ranks = ranks
        self._replicas = [Replicas(picture.instruments.forwards)] if ranks.together else []
        self._device = picture.instruments.device
        self._origins = picture.instruments.origins
        self._batches = picture.instruments.feeds
        self._worth = WORTH_TRYING * picture.seen.typical_seconds
        self._feeds = [each for each in picture.feeds if each.batches]
        self._values = KeptValues(picture.sources, self._device)
        self._swaps = self._choose_swaps()
        self._batches.choose(self._feeds)

    @property
    def recorders(self) -> list[Swap | KeptValues | Replicas]:
        """What has to record one step before it can replay it."""
        return [*(swap for swap, _ in self._swaps), self._values, *self._replicas]

    def removals(self) -> list[Variant]:
        """Changes that take a suspected cause away, on some rank at least."""
        backward = self._picture.backward_site()
        found = [
            *(each for models in self._replicas for each in models.variants(backward)),
            *self._about_batches(),
            *self._about_optimizers(),
            self._about_precision(),
            self._about_memory(),
            self._about_reads(),
            *(self._replayed_function(*each) for each in self._swaps if each[0].is_ready),
        ]
        unable = [replayed_name(each.key) for swap, each in self._swaps if not swap.is_ready]
        if self._picture.feeds and not self._feeds:
            unable += [REPLAY, KEPT_COPIES]
        return choose_together(self._ranks, [each for each in found if each is not None], unable)

    def joined(self) -> tuple[Variant, Variant] | None:
        """Several batches as one, and beside it the same batches one by one."""
        can_join = bool(self._feeds) and all(each.join() for each in self._feeds)
        if not self._ranks.decide(can_join, all):
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
        """Lines whose work is done twice, where their function cannot be replayed.

        Not with several ranks: an exchange in such a line would wait for the others.
        """
        if self._ranks.count > 1:
            return {}
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
        functions = {
            suspect.key: (group.code, suspect)
            for group, suspect in self._picture.suspects
            if group.code is not None and can_be_replayed(group.code)
        }
        worth = {
            key: suspect.seconds
            for key, (_, suspect) in functions.items()
            if suspect.seconds > self._worth
        }
        # What one rank replays every rank must that calls it: its results may decide something.
        chosen = [functions[key] for key in self._ranks.decide(worth, _largest) if key in functions]
        return [(Swap(code, self._ranks.count > 1), suspect) for code, suspect in chosen]

    def _about_batches(self) -> list[Variant]:
        copying = [
            each for _, each in self._picture.suspects if each.phase == "host" and each.copy_seconds
        ]
        copies = sum(each.copy_seconds for each in copying)
        if not self._feeds:
            return []
        slow = max(self._picture.seconds_of("input"), copies) > self._worth
        kept = replace(self._kept_copies(copying), wanted=copies > self._worth)
        return [replace(self._replayed(), wanted=slow), kept]

    def _about_optimizers(self) -> list[Variant | None]:
        if self._picture.seconds_of("optimizer") <= self._worth:
            return []
        optimizers = self._picture.instruments.boundary.optimizers
        largest = sorted(optimizers, key=_tensors_of, reverse=True)
        return [
            other_optimizer(each, self._picture.optimizer_site(each), place)
            for place, each in enumerate(largest[:MOST_OPTIMIZERS])
        ]

    def _about_precision(self) -> Variant | None:
        """Lower precision than the script's own changes its numbers, and is not tried."""
        entered = self._picture.seen.autocast
        if not entered:
            return None
        return Variant(
            name="no autocast",
            cause="precision",
            what="autocast was switched off",
            site=self._picture.site(entered.most_common(1)[0][0]),
            begin=self._origins.switch_autocast_off,
            shared=True,
        )

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

    def _about_reads(self) -> Variant:
        """On the CPU a value is there at once; only reading very many takes time."""
        fewest = FEWEST_RUNS if self._device.is_cpu else 1
        reading = [each for _, each in self._picture.suspects if each.syncs >= fewest]
        most = max(reading, key=lambda each: each.syncs, default=None)
        return Variant(
            name="kept values",
            cause="sync",
            what="values of an earlier step were used instead of reading new ones",
            site=most.site if most is not None else None,
            begin=self._values.replay,
            uses=self._values.uses if most is not None else None,
            wanted=most is not None,
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
        most = max(copying, key=lambda each: each.copy_seconds, default=None)

        def begin(patches: Patches) -> None:
            replayed.begin(patches)
            copies.replay(patches)

        return replace(
            replayed,
            name=KEPT_COPIES,
            cause="transfer",
            what="batches kept in memory were used that had already been converted",
            site=most.site if most is not None else None,
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
            shared=swap.exchanges > 0,
        )


def _steps_to_settle(feeds: Sequence[Feed]) -> int:
    """What workers have prepared during a window must be used up before the next."""
    if not any(each.workers for each in feeds):
        return 0
    return max(each.prefetched for each in feeds) + 1


def _tensors_of(optimizer: torch.optim.Optimizer) -> int:
    return sum(len(group["params"]) for group in optimizer.param_groups)


def _largest(answers: list[dict[str, float]]) -> list[str]:
    """Functions that take most of a step on any rank."""
    most: dict[str, float] = {}
    for each in answers:
        most.update({key: max(seconds, most.get(key, 0.0)) for key, seconds in each.items()})
    return sorted(most, key=lambda key: -most[key])[:MOST_SWAPS]
