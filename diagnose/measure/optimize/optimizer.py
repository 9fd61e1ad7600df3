"""How does an `optimize` go from experiment to experiment? Maps, catalogue, then the ladder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from diagnose.measure.optimize import ladder
from diagnose.measure.session import Broken, Refused, Session
from diagnose.records.codec import from_dict
from diagnose.records.experiments import Comparison, LaunchMap, OptimizeRecord

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
    "loader_workers_4",
    "loader_workers_8",
    "loader_prefetch",
    "loader_persistent",
    "loader_drop_last",
    "logging_sync",
    "torch_compile",
    "fused_optimizer",
    "hidden_states",
    "mixed_precision",
    "bfloat16",
    "labelled_only",
    "keep_memory",
    "all_together",
    "all_together_fp16",
)
EXPERIMENT_SECONDS: Mapping[str, float] = {"smoke": 180, "quick": 300, "full": 3600}

Save = Callable[[OptimizeRecord], None]


def open_optimize(session: Session, only: Sequence[str] | None) -> OptimizeRecord:
    """What will be tried where; nothing has been yet."""
    treatment = session.ready["treatment"]
    known = treatment["experiments"] if treatment else ()
    parts = treatment["parts"] if treatment else ()
    planned = choose(session.workload.name, known, only, parts)
    return OptimizeRecord(session.header, session.workload, planned)


def choose(
    workload: str, known: Sequence[str], only: Sequence[str] | None, parts: Sequence[str] = ()
) -> tuple[str, ...]:
    """What is to be tried, in the order of the catalogue; whatever is not there is refused.

    The parts of a bundle are tried with it, and alone only where they are asked for.
    """
    if not known:
        raise Refused(
            f"workload {workload} has nothing to try; give its Workload a treatment "
            "(bench/examples/my_job.py shows one), or use --workload dgca"
        )
    if only is None:
        return tuple(known)
    every = tuple(dict.fromkeys((*known, *parts)))
    unknown = [key for key in only if key not in every]
    if unknown:
        raise Refused(
            f"workload {workload} has no optimization '{unknown[0]}'; it has {', '.join(every)}"
        )
    return tuple(key for key in every if key in only)


def measure_optimize(
    session: Session, record: OptimizeRecord, save: Save, seconds: float | None = None
) -> OptimizeRecord:
    """Map the launches, then try everything that is planned; save after each.

    `seconds` is the longest that one experiment may take.
    """
    limit = seconds or EXPERIMENT_SECONDS[record.header.effort]
    watcher, treatment = session.watcher, session.ready["treatment"]
    for form in treatment["mapped"]:
        watcher.experiment_begins(f"launch map, {form}", 0, len(record.planned))
        answer = session.ask("launches", limit, form=form)
        if not isinstance(answer, Broken):
            found = from_dict(LaunchMap, answer, "launches")
            record = replace(record, maps=(*record.maps, found))
    if treatment["has_best"]:
        watcher.experiment_begins("pace", 0, 0)
        record = replace(record, pace=session.measure_stage("pace", "pace", "pace", limit))
    for done, key in enumerate(record.planned):
        watcher.experiment_begins(key, done, len(record.planned))
        made = _try(session, key, limit)
        record = replace(record, comparisons=(*record.comparisons, *made))
        save(record)
        watcher.experiment_ended(key, made)
    if treatment["ladder"] is not None:
        plan = from_dict(ladder.Plan, treatment["ladder"], "ladder")
        record = _climb(session, record, plan, limit, save)
    record = replace(record, complete=True)
    save(record)
    return record


def _try(session: Session, key: str, limit: float) -> tuple[Comparison, ...]:
    answer = session.ask("experiment", limit, key=key)
    if isinstance(answer, Broken):
        return (_failed(key, answer),)
    made = [from_dict(Comparison, each, key) for each in answer["comparisons"]]
    done = tuple(_with_power(session, each) for each in made)
    if answer["broken"]:
        # Whatever it left behind, the next experiment begins in a fresh process.
        session.renew()
        done = (*done, _failed(key, Broken("failed", answer["broken"])))
    return done


def _climb(
    session: Session, record: OptimizeRecord, plan: ladder.Plan, limit: float, save: Save
) -> OptimizeRecord:
    """One change more at a time; one that breaks the job is left out of the next steps."""
    climbed: tuple[str, ...] = ()
    order = ladder.order_by_gain(record.comparisons, plan)
    for done, key in enumerate(order):
        keys = (*climbed, key)
        session.watcher.experiment_begins(f"ladder, + {key}", done, len(order))
        answer = session.ask("ladder", limit, keys=keys)
        if isinstance(answer, Broken):
            made = replace(_failed(key, answer), facts={"added": key})
        else:
            made = _with_power(session, from_dict(Comparison, answer, "ladder"))
        if made.status == "done":
            made = ladder.carry_proofs(made, keys, record.comparisons, plan.scope)
            climbed = keys
        record = replace(record, rungs=(*record.rungs, made))
        save(record)
        session.watcher.experiment_ended(f"ladder, + {key}", (made,))
    return record


def _with_power(session: Session, made: Comparison) -> Comparison:
    if made.before is None or made.control is None or made.after is None:
        return made
    return replace(
        made,
        before=session.meter.with_use(made.before),
        control=session.meter.with_use(made.control),
        after=session.meter.with_use(made.after),
    )


def _failed(key: str, broken: Broken) -> Comparison:
    title = key.replace("_", " ")
    return Comparison(key, title, "after", "", "", "", broken.status, broken.reason)
