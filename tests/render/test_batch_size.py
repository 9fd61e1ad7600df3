"""What is told about batch sizes: the three answers, the tables, the figure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from diagnose.analyze.batch_size.choice import judge
from diagnose.analyze.batch_size.rivals import double_and_bisect, knows_limit, list_rivals
from diagnose.measure.batch_size.plan import guess
from diagnose.measure.batch_size.search import search
from diagnose.records.batch_size import BatchSizeRecord, Configuration, Estimate, Probe, ProbeStatus
from diagnose.records.codec import dumps, from_dict
from diagnose.records.header import Header, Reading, WorkloadFacts
from diagnose.records.run import StageResult
from diagnose.render.batch_size import tables
from diagnose.render.batch_size.figure import batch_size_figures
from diagnose.render.batch_size.report import answer, figure_names, render_batch_size
from tests.support.records.parts import gpu_use, machine, measurement, timing

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


def broken(batch: int, status: ProbeStatus) -> Probe:
    reason = "no result after 5 s" if status == "hung" else "KeyError: 'x'"
    return replace(probe(batch), status=status, reason=reason, step_seconds=())


def sweep(steps: Mapping[int, float] = STEPS, slots: int = 10, noise: float = 0.004) -> StageResult:
    made = [
        measurement(
            f"batch {batch}",
            timing(seconds, slots=slots, noise=noise),
            samples=batch,
            gpus=[gpu_use()],
        )
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
        header=Header(
            tool_version="0.1.0",
            label="b",
            created="2026-01-01 00:00 UTC",
            source="hardware",
            effort="full",
            seed=0,
            machine=machine(),
        ),
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
    cut = configuration(sweep=sweep(growing), probes=(probe(1), probe(25)), stopped="no time")
    assert judge(cut).reason == "it may be raised further: the throughput still grows; no time"
    few = judge(configuration(sweep=sweep({1: 0.010, 8: 0.011})))
    assert few.reason.startswith("the fastest of the batches that were timed")


def test_only_memory_makes_an_answer_exact() -> None:
    growing = sweep({1: 0.010, 25: 0.012})
    broke: tuple[ProbeStatus, ...] = ("hung", "failed")
    for status in broke:
        probes = (probe(1), probe(25, fresh=True), broken(26, status))
        found = judge(configuration(probes=probes, sweep=growing))
        assert not found.is_exact
        assert found.doubt.startswith(f"batch 26 {status}, perhaps not for want of memory: ")
        assert found.reason.startswith("it may be raised further")
        assert "memory is the limit" not in render_batch_size(record(found.configuration))
    again = (probe(1), probe(25, fresh=True), broken(26, "failed"), probe(26))
    assert judge(configuration(probes=again)).is_exact, "then the memory refused it too"


def test_without_intervals_nothing_is_proven() -> None:
    found = judge(configuration(sweep=sweep(slots=2)))
    assert found.knee is None
    assert found.use == 8, "the middle values still say something"
    assert found.reason.startswith("not proven, by the middle values alone: intervals need 6")
    assert found.reason.endswith("and there are 2")
    assert "(no interval)x" in tables.sweep_table(found)[0]
    fed = judge(configuration(sweep=sweep(slots=2), loader=loader(250.0)))
    assert "the loader is the limit" not in fed.reason


def test_an_interval_that_reaches_below_is_no_knee() -> None:
    noisy = judge(configuration(sweep=sweep(noise=0.2)))
    eight = next(row for row in noisy.rows if row.batch == 8)
    assert eight.of_peak.low is not None
    assert eight.of_peak.low < 0.95
    assert noisy.knee is not None
    assert noisy.knee > 8
    assert "may be as good, the intervals do not decide it" in noisy.reason


def test_gains_are_paired_within_blocks() -> None:
    """A machine that slows down by half in the middle of the sweep changes no ratio."""
    calm = sweep()
    slowed = tuple(
        replace(
            each,
            timing=replace(
                each.timing,
                slot_seconds=tuple(
                    seconds * (1 if place < 5 else 1.5)
                    for place, seconds in enumerate(each.timing.slot_seconds)
                ),
            ),
        )
        for each in calm.measurements
    )
    before = judge(configuration(sweep=calm)).rows
    after = judge(configuration(sweep=replace(calm, measurements=slowed))).rows
    for first, second in zip(before, after, strict=True):
        assert second.gain.low == pytest.approx(first.gain.low)
        assert second.gain.high == pytest.approx(first.gain.high)


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
    text, beside = tables.sweep_table(judge(configuration(asked=(8, 64))))
    rows = {cells[1]: cells for cells in map(split, text.splitlines()) if len(cells) > 5}
    batch, seconds, gain, used = rows["8"][1:5]
    assert (batch, seconds[:3], used) == ("8", "0.2", "99 %")
    assert float(gain.split()[0]) == pytest.approx(4, rel=0.01)
    assert gain.endswith("]x")
    assert float(rows["8"][7].split()[0]) == pytest.approx(96.8, rel=0.01)
    assert rows["8"][7].endswith("] %")
    assert (rows["1"][3], rows["25"][7]) == ("1", "100 %"), "itself"
    assert rows["8"][10] == "knee, use"
    assert float(rows["8"][9]) > 0, "J/sample"
    assert beside == "Asked for, but too large to fit: 64."


def test_what_was_not_tried_is_not_called_too_large() -> None:
    probes = (probe(1), probe(25, fresh=True))
    cut = configuration(asked=(8, 64), probes=probes, stopped="--max-attempts 2 was reached")
    beside = tables.sweep_table(judge(cut))[-1]
    assert beside == "Asked for, but not tried: 64: --max-attempts 2 was reached."
    hung = configuration(asked=(8, 64), probes=(*probes, broken(26, "hung")))
    assert "not tried: 64: batch 26 hung" in tables.sweep_table(judge(hung))[-1]
    gap = replace(cut, asked=(8, 40, 64), probes=(*probes, probe(50)))
    assert tables.sweep_table(judge(gap))[-2:] == [
        "Asked for, but too large to fit: 64.",
        "Asked for, but not tried: 40: --max-attempts 2 was reached.",
    ]


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
    assert "allows the search 11" in sentence
    assert "halving from 64 needs fewer probes, but leaves 36 % of the batch unused." in sentence
    assert "Lightning" not in sentence, "it needs nine"
    assert "1 more probe repeats" in sentence


def test_probes_that_only_repeat_are_no_part_of_the_search() -> None:
    once = configuration(probes=(probe(1), probe(26), probe(25, fresh=True)))
    text, sentence = tables.rivals_table(judge(once))
    assert "| this search | 3 | 25 |" in text
    assert "repeat" not in sentence
    refuted = replace(probe(27), status="fits", reason="")
    longer = (refuted, replace(probe(27), fresh=True), probe(1, fresh=True))
    again = configuration(probes=(probe(1), *longer, probe(26, fresh=True), probe(25, fresh=True)))
    text, sentence = tables.rivals_table(judge(again))
    assert "| this search | 4 | 25 |" in text
    assert "2 more probes repeat" in sentence


def device_with(limit: int) -> Callable[[int], Probe]:
    return lambda batch: replace(probe(1 if batch <= limit else LIMIT + 1), batch=batch)


def search_like_us(limit: int, fixed_share: float, start: int) -> int:
    """Probes of our search where memory grows by a line, up to 90 % of what is free."""
    per_sample = 0.9 * FREE * (1 - fixed_share) / (limit + 0.5)

    def tried(batch: int) -> Probe:
        peak = Reading(0.9 * FREE * fixed_share + per_sample * batch)
        return replace(device_with(limit)(batch), peak_bytes=peak)

    rules = (Estimate("base batch", start, start),)
    return len(search(tried, guess=lambda seen: guess(seen, rules)))


@pytest.mark.parametrize("fixed_share", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("start", [16, 64])
def test_no_rule_that_knows_the_limit_is_faster_from_eight_on(
    fixed_share: float, start: int
) -> None:
    """Below it doubling and bisection may need one or two probes less."""
    fewer = set()
    for limit in (*range(1, 140), *range(140, 3000, 97)):
        ours = search_like_us(limit, fixed_share, start)
        assert ours <= 6
        for name, attempt in list_rivals(limit, start).items():
            if knows_limit(name, limit, start) and attempt.probes <= ours:
                fewer.add((limit, name.split(":")[0]))
    assert {name for _, name in fewer} == {"Lightning"}, "the others know only what is small"
    assert max(limit for limit, _ in fewer) < 8


def test_only_doubling_and_bisection_always_knows_the_limit() -> None:
    knowing = {
        name: sum(knows_limit(name, limit, 64) for limit in range(1, 200))
        for name in list_rivals(1, 64)
    }
    assert [count == 199 for count in knowing.values()] == [False, True, False, False]


def test_without_a_guess_it_is_doubling_that_begins_one_earlier() -> None:
    for limit in range(2, 300):
        made = search(device_with(limit))
        assert len(made) == double_and_bisect(limit, 2).probes + 1


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
