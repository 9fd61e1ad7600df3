"""What can be changed in this script between two steps, and which changes are worth a window?

Each change is one suspected cause removed; none needs the script's consent, and each says what it
does. Only what was seen to take time is tried: every further window leaves fewer for the others.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from diagnose.measure.lines.source import Place
from diagnose.measure.machine.allocator import keep_freed_memory, return_large_blocks
from diagnose.measure.script.change.exchanges import Replicas
from diagnose.measure.script.change.functions import can_be_replayed
from diagnose.measure.script.change.stand_ins import KeptCopies, KeptValues, Swap
from diagnose.measure.script.change.variant import Variant, choose_together, unchanged
from diagnose.measure.script.patches import Patches
from diagnose.measure.script.ranks import Ranks
from diagnose.measure.script.watch.origins import Feed
from diagnose.measure.script.watch.seen import Picture
from diagnose.records.script import (
    ALL,
    FEWEST_LAUNCHES,
    FROZEN,
    GARBAGE,
    NO_ANOMALIES,
    PLAIN,
    READING_SHARE,
    Site,
    Suspect,
    replayed_name,
)

MOST_SWAPS = 3
REPLAY, KEPT_COPIES = "replayed batches", "kept copies"


def kept_memory(site: Site, worth: float) -> Variant:
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
        worth=worth,
    )


def frozen_garbage(site: Site | None, worth: float) -> Variant:
    """The collector does not visit what is there already, as after gc.freeze()."""

    def begin(patches: Patches) -> None:
        gc.freeze()
        patches.on_undo(gc.unfreeze)

    return Variant(
        name=FROZEN,
        cause="host",
        what="Python's garbage collector left out all objects that were there (gc.freeze())",
        site=site,
        begin=begin,
        worth=worth,
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
        self._worth = picture.worth_trying
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
            self._about_anomalies(),
            self._about_memory(),
            self._about_reads(),
            self._about_garbage(),
            *(self._replayed_function(*each) for each in self._swaps if each[0].is_ready),
        ]
        unable = [replayed_name(each.key) for swap, each in self._swaps if not swap.is_ready]
        if self._picture.feeds and not self._feeds:
            unable += [REPLAY, KEPT_COPIES]
        known = [each for each in found if each is not None]
        return choose_together(self._ranks, [*known, *self._together(known)], unable)

    def _together(self, variants: Sequence[Variant]) -> list[Variant]:
        """Everything at once: what several fixes give back that may overlap."""
        parts = [each for each in variants if each.wanted and not each.shared and not each.risky]
        copied = any(each.name == KEPT_COPIES for each in parts)
        parts = [each for each in parts if not (copied and each.name == REPLAY)]
        if len(parts) < 2 or self._ranks.count > 1:
            return []

        def begin(patches: Patches) -> None:
            for each in parts:
                each.begin(patches)

        return [
            replace(
                unchanged(ALL),
                what="all of these changes at once",
                begin=begin,
                settle=max(each.settle for each in parts),
                spares=sum(each.spares for each in parts),
            )
        ]

    def halved(self) -> tuple[Variant, ...] | None:
        """Half of every batch, and beside it the whole of it.

        Only where the arithmetic does not explain the step: else no batch is too small.
        """
        can_halve = (
            bool(self._feeds)
            and self._picture.is_mostly_overhead
            and all(each.halve() for each in self._feeds)
        )
        if not self._ranks.decide(can_halve, all):
            return None
        beside = replace(self._replayed(), name="replayed beside", wanted=False)
        half = replace(
            self._replayed(),
            name="halved batches",
            cause="batch",
            what="batches kept in memory were cut in two: what does not get shorter is paid per "
            "step, whatever the batch",
            begin=partial(self._batches.serve, mode="half"),
            against=beside.name,
            samples=0.5,
        )
        return unchanged(PLAIN), beside, half

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

    def _about_anomalies(self) -> Variant | None:
        if self._origins.anomaly_spot is None:
            return None
        return Variant(
            name=NO_ANOMALIES,
            cause="host",
            what="autograd's anomaly detection was switched off",
            site=self._picture.site(self._origins.anomaly_spot),
            begin=self._origins.switch_anomalies_off,
            worth=self._picture.seen.typical_seconds,
        )

    def _about_garbage(self) -> Variant | None:
        """What the script itself has frozen must stay so, and cannot be told apart."""
        worth = self._picture.seconds_of(GARBAGE)
        if worth <= self._worth or gc.get_freeze_count():
            return None
        spot = self._picture.groups[GARBAGE].hottest
        return frozen_garbage(self._picture.site(spot), worth)

    def _about_memory(self) -> Variant | None:
        site, nbytes = self._largest_allocation() if self._device.is_cpu else (None, 0.0)
        ceilings = self._picture.seen.ceilings
        rate = ceilings.fresh_bytes_per_second if ceilings is not None else 0.0
        worth = nbytes / rate if rate else 0.0
        return kept_memory(site, worth) if site is not None and worth > self._worth else None

    def _largest_allocation(self) -> tuple[Site | None, float]:
        """Where, and how much of all lines goes back to the system in a step."""
        sizes = Counter[Place]()
        for step in self._picture.seen.works:
            for place, line in step.lines.items():
                if place is not None and place.path:
                    sizes[place] += line.large_bytes
        best = max(sizes, key=lambda place: sizes[place], default=None)
        if best is None or not sizes[best]:
            return None, 0.0
        per_step = sizes.total() / len(self._picture.seen.works)
        return self._picture.sources.site_of(best), per_step

    def _about_reads(self) -> Variant:
        """On the CPU a value is there at once; only reading very many takes time."""
        fewest = FEWEST_LAUNCHES if self._device.is_cpu else 1
        least = READING_SHARE if self._device.is_cpu else 0.0
        reading = [
            each
            for _, each in self._picture.suspects
            if each.syncs >= fewest and each.operator_seconds >= least * each.seconds
        ]
        most = max(reading, key=lambda each: each.syncs, default=None)
        return Variant(
            name="kept values",
            cause="sync",
            what="values of an earlier step were used instead of reading new ones",
            site=most.site if most is not None else None,
            begin=self._values.replay,
            uses=self._values.uses if most is not None else None,
            worth=most.seconds if most is not None else 0.0,
            risky=True,  # a value may decide what the script does next
            wanted=most is not None and most.seconds > self._worth,
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
            worth=self._picture.seconds_of("input"),
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
            what="batches kept in memory were used that had already been converted"
            + ("" if self._device.is_cpu else ", and copied from pinned memory with non_blocking"),
            site=most.site if most is not None else None,
            begin=begin,
            against=REPLAY,
            worth=sum(each.copy_seconds for each in copying),
        )

    def _replayed_function(self, swap: Swap, suspect: Suspect) -> Variant:
        return Variant(
            name=replayed_name(suspect.key),
            cause="input" if suspect.feeds else "recompute" if suspect.repeats else "host",
            what=f"{suspect.site.function} returned its results of an earlier step",
            site=suspect.site,
            begin=swap.replay,
            worth=suspect.seconds,
            spares=swap.nodes,
            shared=swap.exchanges > 0,
        )


def _steps_to_settle(feeds: Sequence[Feed]) -> int:
    """What workers have prepared during a window must be used up before the next."""
    if not any(each.workers for each in feeds):
        return 0
    return max(each.prefetched for each in feeds) + 1


def _largest(answers: list[dict[str, float]]) -> list[str]:
    """Functions that take most of a step on any rank."""
    most: dict[str, float] = {}
    for each in answers:
        most.update({key: max(seconds, most.get(key, 0.0)) for key, seconds in each.items()})
    return sorted(most, key=lambda key: -most[key])[:MOST_SWAPS]
