"""What is told about batch sizes: the three answers, the tables, the figure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

from diagnose.codec import dumps, from_dict
from diagnose.model import METHOD, SCHEMA, Reading, StageResult, WorkloadFacts
from diagnose.sizes import BatchSizeRecord, Configuration, Estimate, Probe
from diagnose.tell import batch_size_tables as tables
from diagnose.tell.batch_size import judge
from diagnose.tell.batch_size_plot import batch_size_figures
from diagnose.tell.batch_size_report import answer, figure_names, render_batch_size
from tests.record_parts import gpu_use, machine, measurement

MB = 1e6
FREE = 1000 * MB
# Seconds per step: 100 samples/s at batch 1, then nearly flat from 8 on.
STEPS = {1: 0.010, 2: 0.011, 4: 0.014, 8: 0.020, 16: 0.0390, 25: 0.0605}
LIMIT = 25


def probe(batch: int, *, fresh: bool = False) -> Probe:
    peak = Reading((200 + 28 * batch) * MB)
    fits = batch <= LIMIT
    return Probe(
        batch,
        "fits" if fits else "over the limit",
        peak,
        Reading(FREE),
        (0.01, 0.02, 0.03),
        "" if fits else "its peak is over 90% of what was free",
        seconds=0.5,
        fresh=fresh,
    )


def sweep(steps: Mapping[int, float] = STEPS) -> StageResult:
    made = [
        measurement(f"batch {batch}", seconds, samples=batch, gpus=[gpu_use()])
        for batch, seconds in steps.items()
    ]
    return StageResult("sweep", "Batch sizes", "done", measurements=tuple(made), seconds=9.0)


def loader(samples_per_second: float) -> StageResult:
    made = measurement("2 workers, mmap", 32 / samples_per_second, samples=32)
    return StageResult("loader", "Loader", "done", measurements=(made,), seconds=1.0)


NO_LOADER = StageResult("loader", "Loader", "skipped", "workload w has no datasets")


def configuration(**changes: object) -> Configuration:
    made = Configuration(
        key="as it is",
        settings={"batch_size": 32},
        status="done",
        estimates=(Estimate("base batch 64", 64, 64), Estimate("1 GB of memory", 1, 2)),
        probes=(*map(probe, (1, 2, 6, 25, 26)), probe(25, fresh=True)),
        sweep=sweep(),
        loader=NO_LOADER,
        seconds=14.0,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def record(*configurations: Configuration) -> BatchSizeRecord:
    made = configurations or (configuration(),)
    return BatchSizeRecord(
        schema=SCHEMA,
        method=METHOD,
        tool_version="0.1.0",
        label="b",
        created="2026-01-01 00:00 UTC",
        source="hardware",
        effort="full",
        seed=0,
        machine=machine(),
        workload=WorkloadFacts("w", "seed", {"batch_size": 32}, 100_000_000),
        task="training step",
        planned=tuple(each.key for each in made),
        configurations=made,
        complete=True,
    )


def test_three_answers() -> None:
    found = judge(configuration())
    assert (found.largest, found.is_exact, found.is_confirmed) == (25, True, True)
    assert found.knee == 8, "400 of 413 samples/s"
    assert found.use == 8
    assert found.reason.startswith("do not raise it: larger ones bring less than 5%")


def test_the_loader_is_the_limit() -> None:
    found = judge(configuration(loader=loader(250.0)))
    assert found.knee == 8
    assert found.use == 4, "286 samples/s are more than the loader brings"
    assert found.reason.startswith("do not raise it: the loader is the limit, it brings 250")
    assert judge(configuration(loader=loader(5000.0))).use == 8, "this loader limits nothing"


def test_memory_is_the_limit_where_the_throughput_still_grows() -> None:
    growing = {1: 0.010, 8: 0.011, 25: 0.012}
    found = judge(configuration(sweep=sweep(growing)))
    assert found.use == found.largest == 25
    assert found.reason.startswith("memory is the limit")
    stopped = judge(configuration(sweep=sweep(growing), stopped="no time was left"))
    assert stopped.reason.startswith("it may be raised further")
    few = judge(configuration(sweep=sweep({1: 0.010, 8: 0.011})))
    assert few.reason.startswith("the fastest of the batches that were timed")


def test_an_answer_that_is_not_exact_says_so() -> None:
    cut = configuration(probes=(probe(1), probe(25, fresh=True)), stopped="--max-attempts 2")
    assert not judge(cut).is_exact
    text = "\n".join(tables.answers_table([judge(cut)]))
    assert "at least 25¹" in text
    assert "--max-attempts 2" in text
    assert "cannot tell: at least 25 fit" in tables.estimates_table(judge(cut))[0]
    assert "not known exactly" in tables.rivals_table(judge(cut))[0]


def test_nothing_fits() -> None:
    refused = replace(probe(1), status="out of memory", reason="no room", step_seconds=())
    none = configuration(
        status="failed", reason="batch 1 does not fit: no room", probes=(refused,), sweep=None
    )
    found = judge(none)
    assert (found.largest, found.knee, found.use) == (None, None, None)
    assert answer(record(none)) == "no batch size can be used: batch 1 does not fit: no room."
    assert figure_names(record(none)) == ()
    assert "No throughput was measured" in render_batch_size(record(none))


def test_a_sweep_that_broke_leaves_the_largest() -> None:
    broken = StageResult("sweep", "Batch sizes", "hung", "no result after 9 s")
    found = judge(configuration(sweep=broken))
    assert (found.largest, found.use) == (25, None)
    assert found.reason == "the throughput is unknown: no result after 9 s"


def test_the_sweep_table_has_the_columns_of_the_field_report() -> None:
    asked = configuration(asked=(8, 64))
    (text,) = tables.sweep_table(judge(asked))
    rows = {cells[1]: cells for cells in map(split, text.splitlines()) if len(cells) > 5}
    batch, seconds, gain, used = rows["8"][1:5]
    assert (batch, seconds[:3], gain, used) == ("8", "0.2", "4.00x", "99 %")
    assert rows["8"][10] == "knee, use"
    assert float(rows["8"][9]) > 0, "J/sample"
    assert "Asked for, but too large to fit: 64." in text


def split(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("|")]


def test_the_memory_line_against_doubling() -> None:
    text, sentence = tables.memory_table(configuration())
    assert "| 25 | 900 MB | 900 MB | 5.70 GB |" in text
    assert "Peak = 200 MB + 28.0 MB per sample." in sentence
    assert "expects 6.33 times what batch 25 takes" in sentence


def test_rules_of_thumb_are_held_against_what_was_found() -> None:
    (text,) = tables.estimates_table(judge(configuration()))
    assert "too large: only 25 fit" in text
    assert "too small: 12.5 times as many fit" in text


def test_other_ways_to_search_on_the_same_case() -> None:
    text, sentence = tables.rivals_table(judge(configuration()))
    assert "| this search | 5 | 25 | – |" in text
    assert "| halving from 64 | 3 | 16 | 36 % |" in text
    assert "allows it 11" in sentence


def test_the_report_opens_with_the_answer_and_is_the_same_again() -> None:
    made = record()
    text = render_batch_size(made)
    assert text.index("use batch 8 (25 fits)") < text.index("## Throughput")
    again = from_dict(BatchSizeRecord, json.loads(dumps(made)))
    assert render_batch_size(again) == text


def test_several_configurations_have_a_section_each() -> None:
    both = record(*(configuration(key=f"max_crops {cap}") for cap in (12, 13)))
    text = render_batch_size(both)
    assert text.count("### Probes") == 2
    assert answer(both).startswith("max_crops 12: use batch 8")


def test_the_figure_depends_on_the_record_alone() -> None:
    drawn = batch_size_figures(record())
    assert list(drawn) == ["batch_size.svg"]
    assert drawn == batch_size_figures(record())
    other = batch_size_figures(record(configuration(loader=loader(250.0))))
    assert b"loader" in other["batch_size.svg"]
    assert other != drawn


def test_an_unfinished_run_says_so() -> None:
    assert answer(replace(record(), complete=False)).endswith("The run was not finished.")
