"""How does an `optimize` go from experiment to experiment? The maps first, then the catalogue."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from diagnose.codec import from_dict
from diagnose.measure.power import PowerMeter
from diagnose.measure.runner import common_facts
from diagnose.measure.supervisor import Broken, Job, Refused, Supervisor
from diagnose.model import Comparison, LaunchMap, OptimizeRecord

# In the order of the field report, then what it left for later, then all together. Listed here
# without torch, for the command line; a test holds it against the catalogue.
EXPERIMENT_KEYS = (
    "apply_prompt",
    "dynamic_mask",
    "gated_fusion",
    "dataset_clone",
    "dataset_preload",
    "dataset_batched",
    "loader_workers",
    "loader_prefetch",
    "loader_persistent",
    "loader_drop_last",
    "logging_sync",
    "torch_compile",
    "fused_optimizer",
    "hidden_states",
    "mixed_precision",
    "all_together",
)
# The patient, and the same after treatment.
MAPPED_FORMS = ("original", "optimised")
EXPERIMENT_SECONDS: Mapping[str, float] = {"smoke": 180, "quick": 300, "full": 3600}
WORKLOADS = ("dgca",)


class OptimizeWatcher:
    """Hears what happens."""

    def opening(self) -> None: ...

    def experiment_begins(self, key: str, done: int, planned: int) -> None: ...

    def stage_progress(self, name: str, slots: int, seconds_per_step: float) -> None: ...

    def experiment_ended(self, key: str, comparisons: Sequence[Comparison]) -> None: ...


class Optimizer:
    """One `optimize`: a record that grows by an experiment at a time."""

    def __init__(
        self,
        job: Job,
        watcher: OptimizeWatcher,
        keys: Sequence[str] = EXPERIMENT_KEYS,
        experiment_seconds: float | None = None,
    ) -> None:
        if job.workload not in WORKLOADS:
            raise Refused(
                f"workload {job.workload} has no catalogue of optimisations; "
                f"{', '.join(WORKLOADS)} has one"
            )
        self._seed = job.seed
        self._keys = keys
        self._seconds = experiment_seconds
        self._watcher = watcher
        self._supervisor = Supervisor(job)
        self._meter = PowerMeter(salt=secrets.token_hex(8))

    def __enter__(self) -> Optimizer:
        return self

    def __exit__(self, *_: object) -> None:
        self._supervisor.end()
        self._meter.stop()

    def open(self) -> OptimizeRecord:
        self._watcher.opening()
        ready = self._supervisor.open()
        self._meter.watch(ready["identities"])
        facts = common_facts(ready, self._meter, self._seed)
        return OptimizeRecord(**facts, planned=tuple(self._keys))

    def measure(
        self, record: OptimizeRecord, save: Callable[[OptimizeRecord], None]
    ) -> OptimizeRecord:
        """Map the launches, then try everything that is planned; save after each."""
        limit = self._seconds or EXPERIMENT_SECONDS[record.effort]
        for form in MAPPED_FORMS:
            self._watcher.experiment_begins(f"launch map, {form}", 0, len(record.planned))
            answer = self._supervisor.ask({"launches": form}, limit, lambda seen: None)
            if not isinstance(answer, Broken):
                found = from_dict(LaunchMap, answer, "launches")
                record = replace(record, maps=(*record.maps, found))
        for done, key in enumerate(record.planned):
            self._watcher.experiment_begins(key, done, len(record.planned))
            made = self._try(key, limit)
            record = replace(record, comparisons=(*record.comparisons, *made))
            save(record)
            self._watcher.experiment_ended(key, made)
        record = replace(record, complete=True)
        save(record)
        return record

    def _try(self, key: str, limit: float) -> tuple[Comparison, ...]:
        answer = self._supervisor.ask(
            {"experiment": key, "energy_period_seconds": self._meter.energy_period_seconds},
            limit,
            lambda seen: self._watcher.stage_progress(*seen),
        )
        if isinstance(answer, Broken):
            title = key.replace("_", " ")
            return (Comparison(key, title, "after", "", "", "", answer.status, answer.reason),)
        made = (from_dict(Comparison, each, key) for each in answer["comparisons"])
        return tuple(self._with_power(each) for each in made)

    def _with_power(self, made: Comparison) -> Comparison:
        if made.before is None or made.control is None or made.after is None:
            return made
        return replace(
            made,
            before=self._meter.with_use(made.before),
            control=self._meter.with_use(made.control),
            after=self._meter.with_use(made.after),
        )
