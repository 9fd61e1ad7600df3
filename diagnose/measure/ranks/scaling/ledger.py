"""Where does the time of one more rank go? One job in seven forms, timed in the same blocks.

The forms differ by one thing each, so that neighbours subtract to one cause. All of them use one
model and one optimiser whose learning rate is 0: a step does all of its work, and rank 0 may take
steps alone without drifting away from the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace

import torch
from torch.nn.parallel import DistributedDataParallel

from diagnose.measure.clock import Effort, StoppingRule, Timed, Track, find_unmet, nothing
from diagnose.measure.ranks.job.member import Member
from diagnose.measure.ranks.scaling.rank_input import RankInput
from diagnose.measure.ranks.scaling.replica import LossOf
from diagnose.records.ranks import SERIES_NAMES, Series
from diagnose.records.stats import FEWEST_FOR_ROBUST_INTERVAL
from diagnose.workload import Batch

BACKWARD_PASSES = 11  # enough for a median that one slow pass does not move


class Forms:
    """The steps of one job: with and without input, exchange and optimiser."""

    def __init__(self, loss: LossOf, needs_find_unused: bool, source: RankInput) -> None:
        self._loss = loss
        self.ddp = DistributedDataParallel(loss, find_unused_parameters=needs_find_unused)
        self.weights = [each for each in loss.parameters() if each.requires_grad]
        self.optimizer = torch.optim.AdamW(self.weights, lr=0.0)
        self._source = source

    def settle_buckets(self) -> None:
        """DDP arranges its buckets after the first exchange: on all ranks, before rank 0 works."""
        for _ in range(2):
            self._take_step(self._source.resident(), "together", "synchronised")

    def variants(self) -> list[Timed]:
        """One for each of SERIES_NAMES, in their order."""
        return [self._variant(*name.split()) for name in SERIES_NAMES]

    def _variant(self, who: str, how: str, where: str) -> Timed:
        fed = where == "input"
        next_batch = self._source.loaded if fed else self._source.resident

        def before_slot() -> None:
            # DDP remembers from the pass before whether to send the model's buffers. Rank 0 has
            # passes that the others have not, and all must send them, or none.
            self.ddp.require_forward_param_sync = how != "local"
            if fed:
                self._source.drain()

        return Timed(
            name=f"{who} {how} {where}",
            step=lambda: self._take_step(next_batch(), who, how),
            before_slot=before_slot,
            after_slot=self._source.settle if fed else nothing,
            alone=who == "alone",
        )

    def _take_step(self, batch: Batch, who: str, how: str) -> None:
        """Without an exchange ("local"), with it ("synchronised"), and with the optimiser too."""
        # The full step alone is the job before it was distributed: without DDP.
        model = self._loss if (who, how) == ("alone", "full") else self.ddp
        with self.ddp.no_sync() if how == "local" else nullcontext():
            torch.autograd.backward(model(batch))
        if how == "full":
            self.optimizer.step()
        self.optimizer.zero_grad()

    def time_backward(self, member: Member) -> tuple[float, ...]:
        """Seconds of the backward pass, on rank 0 while the others wait."""
        member.at("backward pass alone")
        device, seconds = member.device, []
        for _ in range(BACKWARD_PASSES):
            if member.rank == 0:
                loss = self._loss(self._source.resident())
                device.synchronize()
                began = device.now()
                torch.autograd.backward(loss)
                device.synchronize()
                seconds.append(device.now() - began)
                self.optimizer.zero_grad()
            member.still()
            member.barrier()
        return tuple(seconds)


def to_series(tracks: Sequence[Track]) -> list[Series]:
    return [Series(track.variant.name, track.steps, track.by_rank) for track in tracks]


def precise_series_rule(effort: Effort) -> StoppingRule:
    """Every series by itself, because each line of the ledger uses another pair of them."""
    wanted = replace(effort, fewest_slots=FEWEST_FOR_ROBUST_INTERVAL, fewest_seconds=0.0)
    return lambda series: [find_unmet(seconds, wanted) for seconds in series]
