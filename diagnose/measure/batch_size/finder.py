"""How is a batch size found? Guess, search, confirm in a fresh process, then time what is left.

No torch here: every probe runs in a supervised child, which a probe may kill or hang.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from diagnose.measure.batch_size.agree import Agreement
from diagnose.measure.batch_size.estimates import list_estimates
from diagnose.measure.batch_size.judge import explain_refusal, is_slow, judge
from diagnose.measure.batch_size.plan import (
    AS_IT_IS,
    PATIENCE,
    Patience,
    Wanted,
    choose_confirmation,
    choose_sweep,
    explain_stop,
    find_ceiling,
    guess,
    needed_seconds,
    plan_configurations,
)
from diagnose.measure.batch_size.search import search
from diagnose.measure.gpu.power import PowerMeter
from diagnose.measure.runner import STAGE_SECONDS, common_facts
from diagnose.measure.supervisor import Broken, CouldNotOpen, Job, Supervisor
from diagnose.records.batch_size import BatchSizeRecord, Configuration, Probe, largest_fitting
from diagnose.records.codec import from_dict, to_dict
from diagnose.records.header import Reading
from diagnose.records.run import StageResult

# After so long a probe is taken for hung.
PROBE_SECONDS: Mapping[str, float] = {"smoke": 60, "quick": 60, "full": 600}
# The model is already there; this is the first step on a cold disk.
DESCRIBE_SECONDS = 120.0
# What to make smaller where not even one sample fits, for a model of a --model directory or not.
ADVICE: Mapping[bool, str] = {
    True: "a smaller --torch-dtype, fewer --max-new-tokens, shorter questions",
    False: "a smaller --size, a shorter sequence",
}
# A disturbed probe must not pass for one that spills: it is slow again, or it was not.
MOST_REPEATS = 2


class Watcher(Protocol):
    """Hears what happens."""

    def opening(self) -> None: ...

    def experiment_begins(self, key: str, done: int, planned: int) -> None: ...

    def stage_progress(self, name: str, slots: int, seconds_per_step: float) -> None: ...


class Finder:
    """One `batch-size`: a record that grows by a configuration at a time."""

    def __init__(
        self,
        job: Job,
        wanted: Wanted,
        watcher: Watcher,
        agreement: Agreement | None = None,
        ranks: int = 1,
        sharing: int = 1,
    ) -> None:
        self._job = job
        self._wanted = wanted
        self._watcher = watcher
        self._agreement = agreement
        self._ranks = ranks
        self._sharing = sharing
        self._supervisor = Supervisor(job)
        self._meter = PowerMeter(salt=secrets.token_hex(8))
        self._available = Reading(None, "not asked")
        self._least_available = self._available  # of all ranks
        self._seconds = 0.0
        self._enough_seconds = 0.0
        self._fresh = True
        self._judges_time = False
        self._mixed = False

    def __enter__(self) -> Finder:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._supervisor.end()
        self._meter.stop()
        # torchrun interrupts all ranks when one has died, and the user wants to know which.
        if kind is KeyboardInterrupt and self._agreement is not None:
            end = self._agreement.find_end()
            if end:
                raise CouldNotOpen(end) from None

    def open(self) -> BatchSizeRecord:
        self._watcher.opening()
        ready = self._supervisor.open()
        self._meter.watch(ready["identities"])
        facts = common_facts(ready, self._meter, self._job.seed)
        # The CPU spills where it can be read, and the times of a fake device mean nothing.
        self._judges_time = facts["header"].machine.device != "cpu" and not ready["is_fake"]
        self._seconds = self._wanted.probe_seconds or PROBE_SECONDS[facts["header"].effort]
        self._enough_seconds = PATIENCE[facts["header"].effort].longest_probe_seconds
        known = ready["workload"]["settings"]
        planned = plan_configurations(ready["workload"]["name"], known, self._wanted)
        request = {"ask": "describe", "sharing": self._sharing}
        described = self._ask(request, DESCRIBE_SECONDS)
        if isinstance(described, Broken):
            raise CouldNotOpen(described.reason)
        self._available = from_dict(Reading, described["available"], "available")
        self._least_available = (
            self._agreement.agree_on_memory(self._available) if self._agreement else self._available
        )
        self._mixed = described["mixed"]
        return BatchSizeRecord(
            **facts, task=described["task"], planned=tuple(planned), ranks=self._ranks
        )

    def measure(
        self, record: BatchSizeRecord, save: Callable[[BatchSizeRecord], None]
    ) -> BatchSizeRecord:
        for done, key in enumerate(record.planned):
            self._watcher.experiment_begins(key, done, len(record.planned))
            made = self._find(key, record)
            record = replace(record, configurations=(*record.configurations, made))
            save(record)
        record = replace(record, complete=True)
        save(record)
        return record

    def _find(self, key: str, record: BatchSizeRecord) -> Configuration:
        began = time.monotonic()
        max_crops = None if key == AS_IT_IS else int(key.split()[-1])
        base = self._wanted.base
        settings = dict(record.workload.settings)
        if max_crops is not None:
            settings["max_crops"] = max_crops
        crops = settings.get("max_crops")
        estimates = list_estimates(
            self._least_available.value,
            record.workload.parameters,
            base,
            crops if isinstance(crops, int) else None,
        )
        settings |= self._describe_inputs(max_crops)
        asked = self._wanted.sweep
        empty = Configuration(key, settings, "failed", "nothing was tried", estimates, asked=asked)
        if self._wanted.adjust:
            made = self._search(empty, max_crops, self._limit(PATIENCE[record.header.effort]))
        else:
            batch = base or int(record.workload.settings["batch_size"] or 1)
            made = replace(empty, probes=(self._probe(batch, max_crops, ()),))
            made = replace(made, stopped="only this batch was tried, as asked")
        if largest_fitting(made.probes) == 0:
            reason = explain_refusal(made.probes[0], ADVICE[self._job.model is not None])
            return replace(made, reason=reason, seconds=time.monotonic() - began)
        sweep = self._time(made, max_crops, record.header.effort)
        loader = self._time_loader(max_crops, record.header.effort)
        return replace(
            made,
            status="done",
            reason="",
            sweep=sweep,
            loader=loader,
            seconds=time.monotonic() - began,
        )

    def _describe_inputs(self, max_crops: int | None) -> dict[str, Any]:
        """What really goes in: max_crops is only a cap. Whatever breaks here breaks a probe too."""
        request = {"ask": "inputs", "max_crops": max_crops}
        answer = self._ask(request, DESCRIBE_SECONDS)
        return {} if isinstance(answer, Broken) else answer

    def _limit(self, patience: Patience) -> Patience:
        """A probe that is known to be taken for hung is not begun."""
        return replace(
            patience,
            probe_seconds=min(patience.probe_seconds, self._seconds),
            longest_probe_seconds=min(patience.longest_probe_seconds, self._seconds),
        )

    def _search(
        self, empty: Configuration, max_crops: int | None, patience: Patience
    ) -> Configuration:
        made: list[Probe] = []

        def probe(batch: int) -> Probe:
            made.append(self._probe(batch, max_crops, tuple(made)))
            return made[-1]

        searched = search(
            probe,
            guess=lambda seen: guess(seen, empty.estimates),
            ceiling=lambda seen: find_ceiling(seen, patience),
            attempts=self._wanted.attempts,
        )
        while (batch := choose_confirmation(made)) is not None:
            self._renew()
            probe(batch)
        stopped = explain_stop(made, len(searched), self._wanted.attempts, patience)
        return replace(empty, probes=tuple(made), stopped=stopped)

    def _renew(self) -> None:
        self._supervisor.end()
        self._fresh = True

    def _probe(self, batch: int, max_crops: int | None, earlier: Sequence[Probe]) -> Probe:
        self._watcher.experiment_begins(f"batch {batch}", 0, 0)
        comparable = earlier if self._judges_time else ()
        tries = [self._try(batch, max_crops)]
        while is_slow(tries[-1], comparable) and len(tries) <= MOST_REPEATS:
            tries.append(self._try(batch, max_crops))
        fastest = min(tries, key=_fastest) if all(each.fits for each in tries) else tries[-1]
        seconds = sum(each.seconds for each in tries)
        made = replace(fastest, seconds=seconds, fresh=tries[0].fresh)
        made = judge(made, comparable)
        return made if self._agreement is None else self._agreement.agree(made)

    def _try(self, batch: int, max_crops: int | None) -> Probe:
        fresh, self._fresh = self._fresh, False
        request = {
            "ask": "probe",
            "batch": batch,
            "max_crops": max_crops,
            "available": to_dict(self._available),
            "enough_seconds": self._enough_seconds,
            "mixed": self._mixed,
        }
        began = time.monotonic()
        answer = self._ask(request, self._seconds)
        seconds = time.monotonic() - began
        if isinstance(answer, Broken):
            # Whatever a larger batch breaks, it cannot be used; at batch 1 the job itself is.
            self._fresh = True
            peak = Reading(None, "the probe did not end by itself")
            return Probe(
                batch, answer.status, peak, self._available, (), answer.reason, seconds, fresh
            )
        if not answer["clean"]:
            self._renew()
        return replace(from_dict(Probe, answer["probe"], "probe"), seconds=seconds, fresh=fresh)

    def _time(self, found: Configuration, max_crops: int | None, effort: str) -> StageResult:
        usual = PATIENCE[effort].sweep_seconds
        batches = choose_sweep(found.probes, found.asked, usual)
        request = {
            "ask": "sweep",
            "batches": batches,
            "limit_seconds": max(usual, needed_seconds(found.probes, batches)),
            "max_crops": max_crops,
            "energy_period_seconds": self._meter.energy_period_seconds,
            "mixed": self._mixed,
        }
        return self._stage(request, "sweep", "Batch sizes", effort)

    def _time_loader(self, max_crops: int | None, effort: str) -> StageResult:
        request = {
            "ask": "loader",
            "limit_seconds": PATIENCE[effort].loader_seconds,
            "max_crops": max_crops,
        }
        return self._stage(request, "loader", "Loader", effort)

    def _stage(
        self, request: Mapping[str, object], key: str, title: str, effort: str
    ) -> StageResult:
        self._fresh = False
        began = time.monotonic()
        answer = self._ask(request, max(STAGE_SECONDS[effort], self._seconds))
        if isinstance(answer, Broken):
            self._fresh = True
            return StageResult(key, title, answer.status, answer.reason)
        found = self._meter.attach(from_dict(StageResult, answer, key), began)
        return replace(found, seconds=time.monotonic() - began)

    def _ask(self, request: Mapping[str, object], seconds: float) -> dict[str, Any] | Broken:
        return self._supervisor.ask(
            {"batch_size": dict(request)},
            seconds,
            lambda seen: self._watcher.stage_progress(*seen),
        )


def _fastest(probe: Probe) -> float:
    return min(probe.step_seconds)
