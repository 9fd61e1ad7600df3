"""How is a batch size found? Guess, search, confirm in a fresh process, then time what is left.

No torch here: every probe runs in the measuring process, which a probe may kill or hang.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from diagnose.measure.batch_size.agree import Agreement
from diagnose.measure.batch_size.plan import (
    PATIENCE,
    Wanted,
    choose_confirmation,
    choose_sweep,
    explain_stop,
    find_ceiling,
    guess,
    list_estimates,
    needed_seconds,
    plan_configurations,
)
from diagnose.measure.batch_size.search import explain_refusal, is_slow, judge, search
from diagnose.measure.run import STAGE_SECONDS
from diagnose.measure.session import Broken, CouldNotOpen, Refused, Session
from diagnose.records.batch_size import (
    AS_IT_IS,
    UNDER_DDP,
    BatchSizeRecord,
    Configuration,
    Probe,
    largest_fitting,
)
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
MEGABYTE = 10**6
# Requests after which a process is not fresh any more: they leave an allocator behind.
STEPS = ("probe", "sweep", "loader")


class Finder:
    """One `batch-size`: a record that grows by a configuration at a time."""

    def __init__(
        self,
        session: Session,
        wanted: Wanted,
        agreement: Agreement | None = None,
        ranks: int = 1,
        sharing: int = 1,
    ) -> None:
        """`sharing` ranks share the memory of this host."""
        self._session = session
        self._wanted = wanted
        self._agreement = agreement
        self._ranks = ranks
        header = session.header
        # The CPU spills where it can be read, and the times of a fake device mean nothing.
        self._judges_time = header.machine.device != "cpu" and not session.ready["is_fake"]
        self._seconds = wanted.probe_seconds or PROBE_SECONDS[header.effort]
        self._patience = PATIENCE[header.effort]
        self._stage_seconds = max(STAGE_SECONDS[header.effort], self._seconds)
        settings = session.workload.settings
        self._planned = plan_configurations(session.workload.name, settings, wanted)
        described = session.ask("step", DESCRIBE_SECONDS, sharing=sharing)
        if isinstance(described, Broken):
            raise CouldNotOpen(described.reason)
        self._task = described["task"]
        self._mixed = described["mixed"]
        self._ddp = False
        if wanted.ddp and self._task != "training step":
            raise Refused(
                f"workload {session.workload.name} does not train here, so --ddp has no use"
            )
        self._available = limit_memory(
            from_dict(Reading, described["available"], "available"), wanted.memory_megabytes
        )
        self._least_available = (
            agreement.agree_on_memory(self._available) if agreement else self._available
        )

    def open(self) -> BatchSizeRecord:
        """What will be searched where; nothing has been tried yet."""
        header, workload = self._session.header, self._session.workload
        return BatchSizeRecord(header, workload, self._task, tuple(self._planned), self._ranks)

    def measure(
        self, record: BatchSizeRecord, save: Callable[[BatchSizeRecord], None]
    ) -> BatchSizeRecord:
        """Find the batch of every planned configuration; save after each."""
        for done, key in enumerate(record.planned):
            self._session.watcher.experiment_begins(key, done, len(record.planned))
            began = time.monotonic()
            if key == UNDER_DDP:
                self._ddp = True
                self._session.renew()  # what the search without it left behind is not counted
            alone = key in (AS_IT_IS, UNDER_DDP)
            made = self._find(key, None if alone else int(key.split()[-1]))
            made = replace(made, seconds=time.monotonic() - began)
            record = replace(record, configurations=(*record.configurations, made))
            save(record)
        record = replace(record, complete=True)
        save(record)
        return record

    def _find(self, key: str, max_crops: int | None) -> Configuration:
        workload, wanted = self._session.workload, self._wanted
        settings = dict(workload.settings)
        if max_crops is not None:
            settings["max_crops"] = max_crops
        if wanted.memory_megabytes is not None:
            settings["memory_limit_bytes"] = wanted.memory_megabytes * MEGABYTE
        crops = settings.get("max_crops")
        estimates = list_estimates(
            self._least_available.value,
            workload.parameters,
            wanted.base,
            crops if isinstance(crops, int) else None,
        )
        # What really goes in: max_crops is only a cap. Whatever breaks here breaks a probe too.
        inputs = self._session.ask("inputs", DESCRIBE_SECONDS, max_crops=max_crops)
        settings |= {} if isinstance(inputs, Broken) else inputs
        empty = Configuration(
            key, settings, "failed", "nothing was tried", estimates, asked=wanted.sweep
        )
        if wanted.adjust:
            made = self._search(empty, max_crops)
        else:
            batch = wanted.base or int(workload.settings["batch_size"] or 1)
            stopped = "only this batch was tried, as asked"
            made = replace(empty, probes=(self._probe(batch, max_crops, ()),), stopped=stopped)
        if largest_fitting(made.probes) == 0:
            advice = ADVICE[self._session.job.model is not None]
            if self._session.header.machine.device != "cpu":
                advice += ", --device cpu"
            return replace(made, reason=explain_refusal(made.probes[0], advice))
        return replace(
            made,
            status="done",
            reason="",
            sweep=self._time_batches(made, max_crops),
            loader=self._session.measure_stage(
                "loader",
                "loader",
                "Loader",
                self._stage_seconds,
                limit_seconds=self._patience.loader_seconds,
                max_crops=max_crops,
            ),
        )

    def _search(self, empty: Configuration, max_crops: int | None) -> Configuration:
        # A probe that is known to be taken for hung is not begun.
        usual = self._patience
        patience = replace(usual, probe_seconds=min(usual.probe_seconds, self._seconds))
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
            self._session.renew()
            probe(batch)
        stopped = explain_stop(made, len(searched), self._wanted.attempts, patience)
        return replace(empty, probes=tuple(made), stopped=stopped)

    def _probe(self, batch: int, max_crops: int | None, earlier: Sequence[Probe]) -> Probe:
        self._session.watcher.experiment_begins(f"batch {batch}", 0, 0)
        comparable = earlier if self._judges_time else ()
        tries = [self._try(batch, max_crops)]
        while is_slow(tries[-1], comparable) and len(tries) <= MOST_REPEATS:
            tries.append(self._try(batch, max_crops))
        fastest = min(tries, key=_fastest) if all(each.fits for each in tries) else tries[-1]
        seconds = sum(each.seconds for each in tries)
        made = judge(replace(fastest, seconds=seconds, fresh=tries[0].fresh), comparable)
        return made if self._agreement is None else self._agreement.agree(made)

    def _try(self, batch: int, max_crops: int | None) -> Probe:
        fresh = self._session.asked.isdisjoint(STEPS)
        began = time.monotonic()
        answer = self._session.ask(
            "probe",
            self._seconds,
            batch=batch,
            max_crops=max_crops,
            available=to_dict(self._available),
            enough_seconds=self._patience.probe_seconds,
            mixed=self._mixed,
            ddp=self._ddp,
        )
        if isinstance(answer, Broken):
            # Whatever a larger batch breaks, it cannot be used; at batch 1 the job itself is.
            peak = Reading(None, "the probe did not end by itself")
            made = Probe(batch, answer.status, peak, self._available, (), answer.reason)
        else:
            made = from_dict(Probe, answer["probe"], "probe")
            if not answer["clean"]:
                self._session.renew()
        return replace(made, seconds=time.monotonic() - began, fresh=fresh)

    def _time_batches(self, found: Configuration, max_crops: int | None) -> StageResult:
        usual = self._patience.sweep_seconds
        batches = choose_sweep(found.probes, found.asked, usual)
        return self._session.measure_stage(
            "sweep",
            "sweep",
            "Batch sizes",
            self._stage_seconds,
            batches=batches,
            limit_seconds=max(usual, needed_seconds(found.probes, batches)),
            max_crops=max_crops,
            mixed=self._mixed,
            ddp=self._ddp,
        )


def limit_memory(available: Reading, megabytes: int | None) -> Reading:
    """As if there were no more; on the CPU a limit of the process enforces it."""
    if megabytes is None:
        return available
    limit = float(megabytes * MEGABYTE)
    return Reading(limit if available.value is None else min(available.value, limit))


def _fastest(probe: Probe) -> float:
    return min(probe.step_seconds)
