"""Can every judge of the suite decide both ways? One that is not entered here fails."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bench import same_code, whole_command
from diagnose import analyze
from diagnose.analyze import accuracy, batch_size, flags, verdicts
from diagnose.analyze.derive import Difference
from diagnose.analyze.findings import Finding
from diagnose.analyze.optimize import disturbances, effects, experiment, plans, series_causes, work
from diagnose.analyze.prove import equality, speed
from diagnose.analyze.scaling import findings, options
from diagnose.analyze.scaling.ledger import Ledger, build_ledger
from diagnose.analyze.scaling.recommend import recommend
from diagnose.analyze.script import gates
from diagnose.analyze.script.rules import diagnose
from diagnose.records.diagnosis import Gate
from diagnose.records.experiments import Comparison, OptimizeRecord
from diagnose.records.header import Machine, Reading
from diagnose.records.prove import ProveRecord
from diagnose.records.run import Measurement
from diagnose.records.script import AGAIN, CAUSES, PLAIN, Growth, RankTimes, ScriptRecord, Window
from diagnose.records.stats import Interval
from tests.support.records import accuracy as told
from tests.support.records import prove as sides
from tests.support.records import script as seen
from tests.support.records.batch_size import configuration, loader, probe, sweep
from tests.support.records.experiments import compare, ended, unequal
from tests.support.records.generation import generation_record, plan
from tests.support.records.parts import gpu, gpu_use, machine, measurement, timing
from tests.support.records.scaling import Losses, scaling_record
from tests.support.records.script import LINE, STEP, blocks, change, record, suspect
from tests.support.records.series import (
    COMPILED,
    batch,
    epoch,
    other_model,
    rung,
    series_record,
    with_utilization,
)

# A judge is a function with such a name or such a result, or the row of a table of rules.
NAMES = re.compile(r"_?(judge|decide|recommend|best|leaders)(_\w+)?|gate|goals|diagnose|rank")
RESULTS = re.compile(r"\b(Finding|Verdict|Judgment|Goal|Recommendation)\b")
TESTS = Path(__file__).parents[1]

FASTER, SLOWER, SAME = (compare("a", ratio) for ratio in (1.5, 0.6, 1.0))
ALONE, MANY = ([compare(f"a{n}", 1.5, blocks=7) for n in range(most)] for most in (1, 40))
GOLDEN = diagnose(seen.golden_record())
BROKEN = ended("a", "failed", "it broke")
EQUAL = [[1.0, 1.01, 0.99], [1.0, 1.02, 1.01], [1.0, 1.01, 1.02]] * 8
QUICK = [[1.0, 1.01, 0.9], [1.02, 1.0, 0.91], [1.0, 1.02, 0.9]] * 8


def outcomes(made: Sequence[Comparison]) -> tuple[experiment.Outcome, ...]:
    return experiment.judge_all(generation_record(*made))


def name_all(found: Sequence[experiment.Outcome]) -> str:
    return " or ".join(each.comparison.key for each in found)


def timed(made: Comparison) -> experiment.Timed:
    assert made.before is not None
    assert made.control is not None
    assert made.after is not None
    return experiment.measure_speedup(made.before, made.control, made.after)


def losing(losses: Losses) -> Ledger:
    found = build_ledger(scaling_record(losses))
    assert found is not None
    return found


def disturb(made: Comparison) -> Sequence[Finding]:
    return disturbances.find_disturbances(generation_record(made), outcomes([made]))


def prove(after: float) -> ProveRecord:
    return sides.record(windows=sides.windows(0.1, after, 30))


# Name -> who is asked, and by the verdict that must come of it what is put before the judge.
JUDGES: dict[str, tuple[Callable[[Any], object], Mapping[Any, Any]]] = {
    "verdicts.judge_cost": (
        lambda share: verdicts.judge_cost("k", "It", Difference(share, share, 9), "", "").verdict,
        {
            "cause": Interval(0.5, 0.4, 0.6),
            "excluded": Interval(0.0, -0.01, 0.01),
            "cannot tell": Interval(0.04, -0.1, 0.2),
        },
    ),
    "optimize.experiment.judge": (
        lambda made: experiment.judge(made, machine(0)).verdict,
        {
            "FASTER": FASTER,
            "SLOWER": SLOWER,
            "NOT_EQUAL": compare("a", None, equality=unequal()),
            "FAILED": BROKEN,
        },
    ),
    "optimize.experiment.decide": (
        lambda made: experiment.decide(timed(made))[0],
        {"FASTER": FASTER, "SLOWER": SLOWER, "SAME": SAME},
    ),
    "optimize.experiment.judge_family": (
        lambda family: experiment.judge_family(family, machine(0))[0].verdict,
        {"FASTER": ALONE, "INCONCLUSIVE": MANY},
    ),
    "optimize.effects.best_changes": (
        lambda made: name_all(effects.best_changes(outcomes(made))),
        {
            "a": [FASTER, compare("b", 1.2)],
            "b": [SLOWER, compare("b", 1.2)],
            "a or b": [FASTER, compare("b", 1.5)],
            "": [SAME],
        },
    ),
    "optimize.effects.leaders": (
        lambda made: name_all(effects.leaders(outcomes(made))),
        {"a": [FASTER, compare("b", 1.2)], "a or b": [FASTER, compare("b", 1.5)]},
    ),
    "optimize.plans.best_plans": (
        lambda made: name_all(plans.best_plans(outcomes(made))),
        {
            "plan_a": [plan("a", 1.5, "x"), plan("b", 1.2, "x")],
            "plan_b": [plan("a", 1.1, "x"), plan("b", 1.2, "x")],
            "": [plan("a", 0.8, "x")],
        },
    ),
    "optimize.disturbances.find_disturbances": (
        lambda made: "ended" in {each.kind for each in disturb(made)},
        {True: BROKEN, False: FASTER},
    ),
    "optimize.work._judge_share": (
        lambda share: "little is left" in work._judge_share(share),
        {True: Interval(0.9, 0.85, 0.95), False: Interval(0.5, 0.45, 0.55)},
    ),
    "batch_size.judge": (
        lambda made: batch_size.judge(made).is_exact,
        {True: configuration(), False: configuration(probes=(probe(1), probe(25)))},
    ),
    "batch_size.recommend": (
        lambda made: batch_size.judge(made).use,
        {
            8: configuration(),
            4: configuration(loader=loader(250.0)),
            None: configuration(sweep=None),
        },
    ),
    "batch_size._recommend_unproven": (
        lambda steps: batch_size.judge(configuration(sweep=sweep(steps, slots=2))).use,
        {1: {1: 0.01, 25: 0.25}, 25: {1: 0.01, 25: 0.012}},
    ),
    "scaling.recommend.recommend": (
        lambda losses: recommend(scaling_record(losses), []).launcher.text,
        {"python": Losses(communication=0.6), "torchrun --nproc-per-node=2": Losses()},
    ),
    "scaling.options.best_options": (
        lambda made: name_all(options.best_options(outcomes(made))),
        {"a": [FASTER], "": [SLOWER]},
    ),
    "scaling.findings.judge_efficiency": (
        lambda losses: findings.judge_efficiency(losing(losses)).verdict,
        {"cause": Losses(communication=0.6), "excluded": Losses(communication=0.001)},
    ),
    "scaling.findings.judge_communication_share": (
        lambda losses: findings.judge_communication_share(losing(losses)).verdict,
        {"cause": Losses(communication=0.6), "excluded": Losses(communication=0.001)},
    ),
    "scaling.findings.judge_straggler": (
        lambda losses: findings.judge_straggler(scaling_record(losses)).verdict,
        {"cause": Losses(late=0.1), "excluded": Losses()},
    ),
    "prove.speed.judge_speed": (
        lambda after: speed.judge_speed(prove(after)).verdict,
        {"FASTER": 0.05, "SLOWER": 0.2, "SAME": 0.1},
    ),
    "prove.speed.gate": (
        lambda after: speed.gate(prove(after), 0.1, diverges=False),
        {True: 0.1, False: 0.2},
    ),
    "prove.equality.judge_equality": (
        lambda losses: equality.judge_equality(sides.record(runs=sides.runs(losses))).verdict,
        {"EQUAL": sides.LOSSES, "DIVERGES": (2.1, 1.5, 1.25, 1.0)},
    ),
    "script.gates.judge_gates": (
        lambda share: gates.judge_gates(GOLDEN, [Gate("input", share)])[0].verdict,
        {"PASSED": 0.5, "FAILED": 0.1},
    ),
    "accuracy.goals": (
        lambda case: accuracy.goals(accuracy.judge(told.record_of(case)))[0].met,
        {True: told.planted(), False: told.planted(answer=None, answer_reason="silent")},
    ),
    "bench.whole_command.judge": (
        lambda ends: whole_command.judge(*ends),
        {"faster here": (1.1, 1.2), "slower here": (0.8, 0.9), "not decided": (0.9, 1.1)},
    ),
    "bench.same_code.summarize": (
        lambda wrong: "compatible" in same_code.summarize([QUICK] * wrong + [EQUAL] * 60),
        {True: 1, False: 30},
    ),
}

# --- the rows of the tables: a row speaks of the first record, and not, or of innocence, else ---

STEADY = replace(timing(0.3), slot_seconds=(1.2, 1.201) * 5)


def on_gpu(**changes: Any) -> tuple[Machine, Measurement]:
    return machine(), measurement("step", STEADY, gpus=[replace(gpu_use(), **changes)])


def with_gpu(**changes: Any) -> tuple[Machine, Measurement]:
    return replace(machine(), gpus=(replace(gpu(), **changes),)), on_gpu()[1]


def with_clock(**changes: Any) -> tuple[Machine, Measurement]:
    return machine(), measurement("step", replace(STEADY, **changes))


DOUBTS = {
    "throttled": on_gpu(sm_hertz_lowest=Reading(1.5e9)),
    "shared": (machine(cpu_busy=0.2), on_gpu()[1]),
    "pcie_link": with_gpu(pcie_generation_max=Reading(5.0)),
    "gpu_identity": with_gpu(nvml_index=Reading(0.0, "guessed")),
    "gpu_energy": on_gpu(dropped_samples=3),
    "not_steady": with_clock(not_steady="the mean still falls"),
    "imprecise": with_clock(unmet="the interval is wide"),
    "noisy": with_clock(slot_seconds=(1.0, 2.0) * 5),
    "outliers": with_clock(slot_seconds=(9.0, *(1.0, 1.01, 1.02) * 3)),
}


def is_flagged(kind: str, case: tuple[Machine, Measurement]) -> bool:
    where, measured = case
    return kind in {each.kind for each in flags.find_flags(where, [("step", measured)])}


for kind, doubtful in DOUBTS.items():
    cases = {True: doubtful, False: on_gpu()}
    JUDGES[f"flags.FLAGS/{kind}"] = partial(is_flagged, kind), cases


def used(share: float) -> OptimizeRecord:
    base = with_utilization(rung("no_workers", 1.6, watts=(200.0, 300.0)), share, 0.9)
    return series_record(epoch("no_workers", 1.6), rungs=(base,), gpus=1)


def prepared(seconds: float) -> OptimizeRecord:
    return series_record(epoch("workers_8", 1.0, facts={"preprocessing_seconds": seconds}))


def larger(ratio: float) -> OptimizeRecord:
    return series_record(other_model("hidden_128", ratio, (1000, 4000)))


def compiled(ratio: float) -> OptimizeRecord:
    return series_record(epoch("compile_default", ratio, facts=COMPILED))


SERIES = {
    "low_utilization": (used(0.3), used(0.9)),
    "loader_processes": tuple(series_record(epoch("no_workers", ratio)) for ratio in (2.0, 1.0)),
    "loader_bound": tuple(series_record(epoch("workers_8", ratio)) for ratio in (2.0, 0.7)),
    "preprocessing_bound": (prepared(10.0), prepared(0.05)),
    "batch_too_small": tuple(series_record(batch(256, ratio)) for ratio in (1.4, 0.9)),
    "model_too_small": (larger(0.5), larger(0.25)),
    "compile_without_effect": (compiled(1.0), compiled(1.3)),
    "out_of_memory": (
        series_record(ended("batch_512", "failed", "out of memory: 2 GB")),
        series_record(batch(512, 1.2)),
    ),
}


def blame(kind: str, made: OptimizeRecord) -> str:
    found = series_causes.judge_series(made, experiment.judge_all(made))
    return next(each.verdict for each in found if each.kind == kind)


for kind, (guilty, innocent) in SERIES.items():
    records = {"cause": guilty, "excluded": innocent}
    JUDGES[f"optimize.series_causes.RULES/{kind}"] = partial(blame, kind), records


def suffering(**facts: Any) -> ScriptRecord:
    return record(suspects=(suspect(**facts),))


def rank(number: int, alone: float) -> RankTimes:
    variants = {PLAIN: STEP, AGAIN: STEP, "removed": alone}
    windows = (Window(n, each, 1, took) for n in range(12) for each, took in variants.items())
    return RankTimes(number, STEP, 0.0, (), tuple(windows))


LOOP: dict[str, Any] = {"operator_seconds": 0.02, "launches": 900, "trips": 300}
SICK = {
    "input": suffering(phase="input"),
    "transfer": suffering(operator_seconds=0.03, copy_seconds=0.02),
    "host": suffering(),
    "launch": suffering(**LOOP),
    "sync": suffering(**{**LOOP, "syncs": 500, "trips": 500}),
    "allocation": record(changes=(change("allocation"),), windows=blocks(removed=0.06)),
    "precision": record(double_share=1.0, double_site=LINE),
    "optimizer": suffering(**LOOP, phase="optimizer"),
    "evaluation": suffering(phase="evaluation"),
    "batch": record(changes=(change("batch", samples=0.5),), windows=blocks(removed=0.09)),
    "recompute": suffering(repeats=True),
    "growth": record(growth=Growth(LINE, "history", True, 0.0, 0.0, 0.0, 5e6)),
    "communication": suffering(phase="communication"),
    "straggler": record(changes=(change("communication"),), ranks=(rank(0, 0.05), rank(1, 0.1))),
    "compute": record(),
}


def is_found(cause: str, made: ScriptRecord) -> bool:
    return cause in {each.cause for each in diagnose(made).findings}


for cause in CAUSES:
    scripts = {True: SICK[cause], False: SICK["host" if cause == "compute" else "compute"]}
    JUDGES[f"script.rules.diagnose/{cause}"] = partial(is_found, cause), scripts

# Where a judge is asked instead: by the test that goes through all of its kind, or as a part of
# another judge. What ends in a slash stands for every row of a table.
ELSEWHERE = {
    "analyze/test_rules.py": "run.rules.judge run.rules.SUSPECTS/",
    "analyze/test_claims.py": "claims.verdict.judge claims.verdict.judge_claims "
    "claims.verdict.decide",
    "analyze/test_link.py": "link.verdict.judge link.verdict.RULES/ link.trials.judge_trials "
    "link.trials.RULES/ link.surroundings.judge_surroundings link.surroundings.RULES_OF_NCCL/ "
    "link.surroundings.RULES_OF_ANY/",
    "render/test_scaling.py": "scaling.findings.judge_scaling",
    "measure/trace/test_twin.py": "trace.rules.diagnose",
    "verdicts.judge_cost": "verdicts.excluded verdicts.cannot_tell",
    "flags.FLAGS/noisy": "flags.find_flags flags.collect",
    "accuracy.goals": "accuracy.judge",
    "optimize.experiment.judge_family": "optimize.experiment.judge_all "
    "optimize.ladder.judge_ladder scaling.options.judge_options",
    "optimize.series_causes.RULES/low_utilization": "optimize.series_causes.judge_series",
    "script.gates.judge_gates": "script.gates._judge",
    "script.rules.diagnose/host": "script.rules.diagnose script.causes.judge_seen "
    "script.causes._judge script.bounds.judge_bounds script.device.judge_device "
    "script.growth.judge script.precision.judge script.prefix.judge_prefix "
    "script.ranks.judge_ranks",
}


def find_judges() -> Iterator[str]:
    for module in pkgutil.walk_packages(analyze.__path__, "diagnose.analyze."):
        made = importlib.import_module(module.name)
        source, place = inspect.getsource(made), module.name.removeprefix("diagnose.analyze.")
        for name, value in vars(made).items():
            if inspect.isfunction(value) and value.__module__ == module.name:
                result = str(value.__annotations__.get("return", ""))
                is_public = not name.startswith("_")
                if NAMES.fullmatch(name) or (is_public and RESULTS.search(result)):
                    yield f"{place}.{name}"
            elif isinstance(value, tuple) and re.search(rf"^{name}\b.*= \($", source, re.MULTILINE):
                yield from (f"{place}.{name}/{e.kind}" for e in value if hasattr(e, "kind"))


def test_every_judge_is_entered() -> None:
    found = set(find_judges())
    assert len(found) > 60, "the search itself finds the judges"
    entered = {*JUDGES, *" ".join(ELSEWHERE.values()).split()}
    beyond = ("bench.", "script.rules.diagnose/")  # of other code, and of no table
    assert all(
        each.startswith(beyond) or any(e.startswith(each) for e in found) for each in entered
    )
    unknown = {each for each in found if not entered & {each, each.split("/")[0] + "/"}}
    assert not unknown, "say in JUDGES by what each of them decides one way and the other"
    for place in ELSEWHERE.keys() - JUDGES.keys():
        assert (TESTS / place).exists()


@pytest.mark.parametrize("name", JUDGES)
def test_every_judge_decides_both_ways(name: str) -> None:
    judge, cases = JUDGES[name]
    assert len(cases) > 1
    for verdict, case in cases.items():
        assert judge(case) == verdict
