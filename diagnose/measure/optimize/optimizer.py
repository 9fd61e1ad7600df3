"""How does an `optimize` go from experiment to experiment? Maps, catalogue, then the ladder."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from diagnose.measure.gpu.power import PowerMeter
from diagnose.measure.optimize import ladder
from diagnose.measure.runner import common_facts
from diagnose.measure.supervisor import Broken, Job, Refused, Supervisor
from diagnose.records.codec import from_dict
from diagnose.records.experiments import Comparison, LaunchMap, OptimizeRecord
from diagnose.records.run import StageResult

# Of dgca, in the order of the field report, then what it left for later, then all together.
# Listed here without torch, for the command line; a test holds it against the catalogue.
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
    "labelled_only",
    "keep_memory",
    "all_together",
)
EXPERIMENT_SECONDS: Mapping[str, float] = {"smoke": 180, "quick": 300, "full": 3600}


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
        only: Sequence[str] | None = None,
        experiment_seconds: float | None = None,
    ) -> None:
        self._seed = job.seed
        self._only = only
        self._forms: Sequence[str] = ()
        self._has_best = False
        self._ladder: ladder.Plan | None = None
        self.evaluates = False  # whether the job answers questions; known once it is open
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
        self._forms, self._has_best = ready["mapped"], ready["has_best"]
        self.evaluates = ready["evaluates"]
        if ready["ladder"] is not None:
            self._ladder = from_dict(ladder.Plan, ready["ladder"], "ladder")
        planned = choose(ready["workload"]["name"], ready["experiments"], self._only)
        return OptimizeRecord(**facts, planned=planned)

    def measure(
        self, record: OptimizeRecord, save: Callable[[OptimizeRecord], None]
    ) -> OptimizeRecord:
        """Map the launches, then try everything that is planned; save after each."""
        limit = self._seconds or EXPERIMENT_SECONDS[record.header.effort]
        for form in self._forms:
            self._watcher.experiment_begins(f"launch map, {form}", 0, len(record.planned))
            answer = self._supervisor.ask({"launches": form}, limit, lambda seen: None)
            if not isinstance(answer, Broken):
                found = from_dict(LaunchMap, answer, "launches")
                record = replace(record, maps=(*record.maps, found))
        if self._has_best:
            record = replace(record, pace=self._measure_pace(limit))
        for done, key in enumerate(record.planned):
            self._watcher.experiment_begins(key, done, len(record.planned))
            made = self._try(key, limit)
            record = replace(record, comparisons=(*record.comparisons, *made))
            save(record)
            self._watcher.experiment_ended(key, made)
        if self._ladder is not None:
            record = self._climb(record, self._ladder, limit, save)
        record = replace(record, complete=True)
        save(record)
        return record

    def _climb(
        self,
        record: OptimizeRecord,
        plan: ladder.Plan,
        limit: float,
        save: Callable[[OptimizeRecord], None],
    ) -> OptimizeRecord:
        """One change more at a time; one that breaks the job is left out of the next rungs."""
        climbed: tuple[str, ...] = ()
        order = ladder.order_by_gain(record.comparisons, plan)
        for done, key in enumerate(order):
            keys = (*climbed, key)
            self._watcher.experiment_begins(f"ladder, + {key}", done, len(order))
            made = self._try_rung(keys, limit)
            if made.status == "done":
                made = ladder.carry_proofs(made, keys, record.comparisons, plan.scope)
                climbed = keys
            record = replace(record, rungs=(*record.rungs, made))
            save(record)
            self._watcher.experiment_ended(f"ladder, + {key}", (made,))
        return record

    def _try_rung(self, keys: Sequence[str], limit: float) -> Comparison:
        answer = self._supervisor.ask(
            {"rung": keys, "energy_period_seconds": self._meter.energy_period_seconds},
            limit,
            lambda seen: self._watcher.stage_progress(*seen),
        )
        if isinstance(answer, Broken):
            return replace(_failed(keys[-1], answer), facts={"added": keys[-1]})
        return self._with_power(from_dict(Comparison, answer, "rung"))

    def _measure_pace(self, limit: float) -> StageResult:
        self._watcher.experiment_begins("pace", 0, 0)
        answer = self._supervisor.ask(
            {"pace": self._meter.energy_period_seconds},
            limit,
            lambda seen: self._watcher.stage_progress(*seen),
        )
        if isinstance(answer, Broken):
            return StageResult("pace", "pace", answer.status, answer.reason)
        found = from_dict(StageResult, answer, "pace")
        measured = tuple(self._meter.with_use(each) for each in found.measurements)
        return replace(found, measurements=measured)

    def _try(self, key: str, limit: float) -> tuple[Comparison, ...]:
        answer = self._supervisor.ask(
            {"experiment": key, "energy_period_seconds": self._meter.energy_period_seconds},
            limit,
            lambda seen: self._watcher.stage_progress(*seen),
        )
        if isinstance(answer, Broken):
            return (_failed(key, answer),)
        made = [from_dict(Comparison, each, key) for each in answer["comparisons"]]
        done = tuple(self._with_power(each) for each in made)
        if answer["broken"]:
            # Whatever it left behind, the next experiment begins in a fresh process.
            self._supervisor.end()
            done = (*done, _failed(key, Broken("failed", answer["broken"])))
        return done

    def _with_power(self, made: Comparison) -> Comparison:
        if made.before is None or made.control is None or made.after is None:
            return made
        return replace(
            made,
            before=self._meter.with_use(made.before),
            control=self._meter.with_use(made.control),
            after=self._meter.with_use(made.after),
        )


def _failed(key: str, broken: Broken) -> Comparison:
    title = key.replace("_", " ")
    return Comparison(key, title, "after", "", "", "", broken.status, broken.reason)


def choose(workload: str, known: Sequence[str], only: Sequence[str] | None) -> tuple[str, ...]:
    """What is to be tried, in the order of the catalogue; whatever is not there is refused."""
    if not known:
        raise Refused(
            f"workload {workload} has nothing to try; give its Workload a treatment "
            "(bench/examples/my_job.py shows one), or use --workload dgca"
        )
    unknown = [key for key in only or () if key not in known]
    if unknown:
        raise Refused(
            f"workload {workload} has no optimisation '{unknown[0]}'; it has {', '.join(known)}"
        )
    return tuple(key for key in known if only is None or key in only)
