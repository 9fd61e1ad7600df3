"""Who keeps the measuring process working? Asks it, replaces it, and never waits for ever.

This side loads no torch. A request ends as an answer, or as a status with one sentence; NVML is
sampled from here, beside the process that measures.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any, Literal

from diagnose.measure.gpu.power import PowerMeter
from diagnose.measure.process import Died, Hung, Process, own_module
from diagnose.measure.stages import Stage
from diagnose.records.codec import from_dict
from diagnose.records.experiments import Comparison
from diagnose.records.header import Header, Machine, WorkloadFacts
from diagnose.records.run import StageResult

OPEN_SECONDS = 600  # a cold disk, a first preprocessing of the data


@dataclass(frozen=True)
class Job:
    """What is to be measured. None leaves the choice to the device that is found."""

    workload: str = "bert"
    size: str | None = None
    device: str | None = None
    data: str | None = None
    model: str | None = None  # a directory with the model to take instead of random weights
    torch_dtype: str | None = None  # of the weights of a model that writes answers
    max_new_tokens: int | None = None  # of its answers
    effort: str | None = None
    seed: int = 0
    # So many training steps must fit an accelerator at once, else the batch is smaller; 0: no care.
    copies: int = 0


@dataclass(frozen=True)
class Broken:
    """A request without an answer."""

    status: Literal["failed", "hung"]
    reason: str


class Refused(Exception):
    """The request makes no sense here; the message says why and what to do."""


class CouldNotOpen(Exception):
    """The measuring process ended before anything could be measured."""


class Watcher:
    """Hears what happens. The command line shows it; tests hear nothing."""

    def opening(self) -> None: ...

    def stage_begins(self, stage: Stage) -> None: ...

    def stage_progress(self, name: str, slots: int, seconds_per_step: float) -> None: ...

    def stage_ended(self, result: StageResult) -> None: ...

    def experiment_begins(self, key: str, done: int, planned: int) -> None: ...

    def experiment_ended(self, key: str, comparisons: Sequence[Comparison]) -> None: ...


class Session:
    """One measuring process at a time; a fresh one after every failure."""

    def __init__(self, job: Job, watcher: Watcher) -> None:
        self.job = job
        self.watcher = watcher
        self.asked: set[str] = set()  # kinds of request that the process of now has had
        self._process: Process | None = None
        # Opened before the measuring process, to see who else is on the device.
        self.meter = PowerMeter(salt=secrets.token_hex(8))

    @classmethod
    @contextlib.contextmanager
    def open(cls, job: Job, watcher: Watcher) -> Iterator[Session]:
        """Start the process; Refused or CouldNotOpen if there is nothing to measure."""
        session = cls(job, watcher)
        try:
            watcher.opening()
            session.describe(session._start())
            yield session
        finally:
            session.renew()
            session.meter.stop()

    def describe(self, ready: dict[str, Any]) -> None:
        """Keep what the process says about device, machine and workload."""
        self.meter.watch(ready["identities"])
        self.ready = ready
        self.workload = from_dict(WorkloadFacts, ready["workload"], "workload")
        self.header = Header(
            label="",
            created=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
            source="fake device" if ready["is_fake"] else self.meter.source,
            effort=ready["effort"],
            machine=self.meter.describe(from_dict(Machine, ready["machine"], "machine")),
            seed=self.job.seed,
        )

    def ask(self, kind: str, seconds: float, **content: object) -> dict[str, Any] | Broken:
        """The process's answer. Whatever state a failure leaves it in, it is then replaced."""
        try:
            if self._process is None:
                self._start()
            assert self._process is not None
            self.asked.add(kind)
            said, answer = self._process.ask(
                kind,
                {"energy_period_seconds": self.meter.energy_period_seconds, **content},
                seconds,
                lambda seen: self.watcher.stage_progress(*seen),
            )
        except Hung:
            reason = f"no result after {seconds:g} s; the measuring process was killed"
            broken = Broken("hung", reason)
        except Died as error:
            broken = Broken("failed", f"the measuring process {error}")
        except (Refused, CouldNotOpen) as error:
            broken = Broken("failed", f"the measuring process could not be replaced: {error}")
        else:
            if said == "done":
                result: dict[str, Any] = answer
                return result
            broken = Broken("failed", answer)
        self.renew()
        return broken

    def measure_stage(
        self, kind: str, key: str, title: str, seconds: float, **content: object
    ) -> StageResult:
        """The stage that a request measures, with what NVML saw meanwhile."""
        began = time.monotonic()
        answer = self.ask(kind, seconds, **content)
        if isinstance(answer, Broken):
            result = StageResult(key, title, answer.status, answer.reason)
        else:
            result = self.meter.attach(from_dict(StageResult, answer, key), began)
        return replace(result, seconds=time.monotonic() - began)

    def renew(self) -> None:
        """End the process; the next request begins in a fresh one."""
        self.asked.clear()
        if self._process is not None:
            self._process.end()
            self._process = None

    def _start(self) -> dict[str, Any]:
        self._process = Process(own_module("diagnose.measure.worker"))
        try:
            said, answer = self._process.ask("open", vars(self.job), OPEN_SECONDS)
        except Died as error:
            self.renew()
            raise CouldNotOpen(f"the measuring process {error}") from None
        except Hung:
            self.renew()
            raise CouldNotOpen(f"not ready after {OPEN_SECONDS} s") from None
        if said != "done":
            self.renew()
            raise Refused(answer) if said == "refused" else CouldNotOpen(answer)
        ready: dict[str, Any] = answer
        return ready
