"""Are the windows of the daily series what they claim to be, and is nothing known too early?"""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from bench.timeseries import series, windows
from bench.timeseries.series import Series
from bench.timeseries.settings import SEQUENCES, Settings
from bench.timeseries.windows import open_loader
from bench.timeseries.workload import FEATURES, WORKLOAD
from diagnose.workload import WorkloadError

REAL = series.read(None)
DAYS = len(REAL)
TRAINING_END = DAYS * 70 // 100
CPU = torch.device("cpu")
PROPERTY = settings(max_examples=15, deadline=None, derandomize=True)


def change(original: Series, column: str, day: int) -> Series:
    if column in original.numbers:
        numbers = list(original.numbers[column])
        numbers[day] += 100.0
        return replace(original, numbers={**original.numbers, column: tuple(numbers)})
    words = list(original.categories[column])
    words[day] = "hail"  # none of the five that the series has
    return replace(original, categories={**original.categories, column: tuple(words)})


def training_tensors(of: Series, sequence: int = 30) -> dict[str, torch.Tensor]:
    """All that training can see."""
    parts = windows.cut(of, "temp_max", sequence)
    return {
        "days": parts.training.days,
        "targets": parts.training.targets,
        "measured": parts.training.measured,
        "feature means": parts.feature_scaler.mean,
        "feature deviations": parts.feature_scaler.deviation,
        "target mean": parts.target_scaler.mean,
        "target deviation": parts.target_scaler.deviation,
    }


BEFORE = training_tensors(REAL)
COLUMNS = (*REAL.numbers, *REAL.categories)


@pytest.mark.parametrize("sequence", SEQUENCES)
def test_replacing_everything_after_the_training_part_leaves_it_bit_by_bit(sequence: int) -> None:
    noise = random.Random(0)
    numbers = {
        name: (*cells[:TRAINING_END], *(noise.uniform(-1e6, 1e6) for _ in cells[TRAINING_END:]))
        for name, cells in REAL.numbers.items()
    }
    words = {
        name: (*cells[:TRAINING_END], *(noise.choice("xyz") for _ in cells[TRAINING_END:]))
        for name, cells in REAL.categories.items()
    }
    other = replace(REAL, numbers=numbers, categories=words)
    before, after = training_tensors(REAL, sequence), training_tensors(other, sequence)
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_the_last_training_value_does_reach_the_training_part() -> None:
    after = training_tensors(change(REAL, "temp_max", TRAINING_END - 1))
    changed = {name for name in BEFORE if not torch.equal(BEFORE[name], after[name])}
    assert changed >= {"targets", "measured", "feature means", "target mean"}


@PROPERTY
@given(st.sampled_from(COLUMNS), st.integers(windows.HISTORY + 1, DAYS - 1))
def test_features_of_earlier_days_do_not_know_a_day(column: str, day: int) -> None:
    before = windows.build_features(REAL, "temp_max", TRAINING_END)
    after = windows.build_features(change(REAL, column, day), "temp_max", TRAINING_END)
    # A new word in the training part is a new column.
    row, changed = day - windows.HISTORY, [name for name in after if name not in before]
    for name, values in before.items():
        assert torch.equal(values[:row], after[name][:row])
        if not torch.equal(values[row], after[name][row]):
            changed.append(name)
    assert changed


def test_features_hold_what_their_names_say() -> None:
    built = windows.build_features(REAL, "temp_max", TRAINING_END)
    assert len(built) == FEATURES
    day = 500
    row = {name: float(values[day - windows.HISTORY]) for name, values in built.items()}
    highest = REAL.numbers["temp_max"]
    assert row["temp_max"] == highest[day]
    assert row["temp_max 14 days before"] == highest[day - 14]
    assert row["temp_max change"] == highest[day] - highest[day - 1]
    assert row["temp_max mean of 3 days"] == pytest.approx(sum(highest[day - 2 : day + 1]) / 3)
    assert row["wind 1 day before"] == REAL.numbers["wind"][day - 1]
    weather = {name: value for name, value in row.items() if name.startswith("weather ")}
    assert weather == {
        f"weather {word}": float(word == REAL.categories["weather"][day])
        for word in ("drizzle", "fog", "rain", "snow", "sun")
    }
    assert row["weekend"] == float(REAL.days[day].weekday() in (5, 6))


@pytest.mark.parametrize("sequence", SEQUENCES)
def test_a_window_ends_on_the_day_before_its_target(sequence: int) -> None:
    parts = windows.cut(REAL, "temp_max", sequence)
    target_days = range(windows.HISTORY + sequence, DAYS)
    highest = torch.tensor(REAL.numbers["temp_max"], dtype=torch.float64)
    found = [parts.training, parts.validation, parts.test]
    assert [len(part) for part in found[1:]] == [219, 220]
    assert sum(map(len, found)) == len(target_days)
    assert torch.equal(torch.cat([part.measured for part in found]), highest[target_days.start :])
    place = parts.feature_names.index("temp_max")
    for part, first in zip(
        found, (target_days.start, TRAINING_END, TRAINING_END + 219), strict=True
    ):
        days, target = part[len(part) - 1]
        day = first + len(part) - 1
        scaler = parts.feature_scaler
        seen = days[:, place].double() * scaler.deviation[place] + scaler.mean[place]
        torch.testing.assert_close(seen, highest[day - sequence : day], atol=1e-5, rtol=0)
        assert float(parts.target_scaler.undo(target)) == pytest.approx(
            float(highest[day]), abs=1e-5
        )


def test_the_training_part_is_scaled_and_a_constant_column_stays_finite() -> None:
    constant = replace(REAL, numbers={**REAL.numbers, "wind": (3.0,) * DAYS})
    days = windows.cut(constant, "temp_max", 7).training.days
    assert days.isfinite().all()
    scaled = windows.cut(REAL, "temp_max", 7).training.targets
    assert abs(float(scaled.mean())) < 0.05
    assert abs(float(scaled.std()) - 1) < 0.05


def test_the_shortest_series_that_still_has_a_window() -> None:
    enough = series.parse(table("day,x", *(f"{day},1" for day in days_from(2020, 88))), "a.csv")
    assert len(windows.cut(enough, "x", 30).training) == 1
    short = series.parse(table("day,x", *(f"{day},1" for day in days_from(2020, 87))), "a.csv")
    with pytest.raises(
        WorkloadError, match=r"a\.csv has 87 days; sequences of 30 days need at least 88"
    ):
        windows.cut(short, "x", 30)


# --- the user's CSV file ---


def days_from(year: int, count: int) -> list[date]:
    return [date(year, 1, 1) + timedelta(days=place) for place in range(count)]


def table(*lines: str) -> bytes:
    return ("\n".join(lines) + "\n").encode()


@pytest.mark.parametrize(
    "form",
    ["%Y-%m-%d", "%Y/%m/%d", "%Y%m%d", "%d.%m.%Y", "%m/%d/%Y", "%d/%m/%Y", "%Y-%m-%dT00:00:00Z"],
)
@pytest.mark.parametrize("delimiter", [",", ";"])
def test_the_date_column_is_found_however_it_is_written(form: str, delimiter: str) -> None:
    days = days_from(2023, 40)
    lines = [delimiter.join(("1.5", day.strftime(form), "sun")) for day in days]
    found = series.parse(table(delimiter.join(("x", "when", "sky")), *lines), "a.csv")
    assert found.days == tuple(days)
    assert found.numbers == {"x": (1.5,) * 40}
    assert found.categories == {"sky": ("sun",) * 40}


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        (["x,y", "1,2", "3,4"], "no column of a.csv holds dates such as 2024-01-31"),
        (["2024-01-01,1"], "a.csv has no rows"),
        ([], "a.csv has no rows"),
        (["d,x", "2024-01-01,1", "soon,2", "2024-01-03,2"], "row 3 of a.csv: 'soon' in column d"),
        (["d,x", "2024-02-28,1", "2024-02-29,1", "2024-02-30,2"], "row 4 of a.csv: '2024-02-30'"),
        (["d,x", "2024-01-01,1", "2024-01-01,2"], "row 3 of a.csv repeats the day 2024-01-01"),
        (["d,x", "2024-01-02,1", "2024-01-01,2"], "row 3 of a.csv: 2024-01-01 comes after"),
        (
            ["d,x", "2024-01-01,1", "2024-01-02,1", "2024-01-05,2", "2024-01-06,1", "2024-01-08,1"],
            "a.csv lacks 3 days before rows 4, 6: row 4 is 2024-01-05, the row above it 2024-01-02",
        ),
        (
            ["d,x,y", "2024-01-01,1,5", "2024-01-02,n/a,5", "2024-01-03,3,nan", "2024-01-04,3,4"],
            "no numbers in rows 3, 4: row 3 has 'n/a' in column x",
        ),
        (["d,x", "2024-01-01,", "2024-01-02,5"], "no numbers in row 2: row 2 has '' in column x"),
        (["d,x", "2024-01-01,1", "2024-01-02,1,7"], "row 3 of a.csv has 3 cells, the header has 2"),
        (["d,x,x", "2024-01-01,1,2"], "the header of a.csv has 'x' twice"),
        (["d,sky", "2024-01-01,sun", "2024-01-02,fog"], "a.csv has no column of numbers"),
    ],
)
def test_an_unusable_file_is_refused_with_the_row_to_blame(lines: list[str], sentence: str) -> None:
    with pytest.raises(WorkloadError) as refusal:
        series.parse(table(*lines), "a.csv")
    assert sentence in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_many_faulty_rows_are_counted_and_unreadable_sources_named() -> None:
    lines = [f"{day},{'?' if place % 3 else 1}" for place, day in enumerate(days_from(2024, 21))]
    lines += [f"{day},1" for day in days_from(2024, 60)[21:]]
    with pytest.raises(WorkloadError, match="in rows 3, 4, 6, 7, 9 and 9 more: row 3 has"):
        series.parse(table("d,x", *lines), "a.csv")
    with pytest.raises(WorkloadError, match=r"a\.csv is not UTF-8 text"):
        series.parse(b"date,x\n2024-01-01,\xff\n", "a.csv")
    with pytest.raises(WorkloadError, match="pip install vega_datasets"):
        series.read_package("no_such_package")


# --- the workload ---


@pytest.mark.parametrize("columns", [1, 12])
def test_a_file_of_another_width_fits_the_model(columns: int, tmp_path: Path) -> None:
    names = [f"x{place}" for place in range(columns)]
    lines = [f"{day},{','.join(str(day.day) for _ in names)}" for day in days_from(2020, 200)]
    file = tmp_path / "mine.csv"
    file.write_bytes(table(",".join(("d", *names)), *lines))
    size = WORKLOAD.sizes["tiny"]
    batch = next(iter(DataLoader(WORKLOAD.datasets["windows"](size, file), 4)))
    assert WORKLOAD.model.loss(WORKLOAD.model.build(size), batch).isfinite()
    assert WORKLOAD.describe_data is not None
    told = WORKLOAD.describe_data(size, file)
    assert told.description.startswith("mine.csv: x0 of the next day from")
    assert "(the model of this size takes 35)" in told.description
    assert (told.sentences, told.rows) == (200, 200 * 70 // 100 - windows.HISTORY - 7)


def test_workers_change_neither_the_windows_nor_their_order() -> None:
    training = windows.cut(REAL, "temp_max", 7).training
    runs = []
    for workers in (0, 2):
        loader = open_loader(Settings(workers=workers, sequence=7), training, CPU, shuffle_seed=3)
        runs.append([torch.cat([targets for _, targets in loader]) for _ in range(2)])
    for without, with_workers in zip(*runs, strict=True):
        assert torch.equal(without, with_workers)
    assert not torch.equal(runs[0][0], runs[0][1])
    assert torch.equal(runs[0][0].sort().values, training.targets.sort().values)


def test_settings_that_cannot_be() -> None:
    assert Settings.from_size(WORKLOAD.sizes["seed"]) == Settings(batch_size=128, hidden=64)
    with pytest.raises(WorkloadError, match="accumulate is 0; it must be 1 or more"):
        Settings(accumulate=0)
    with pytest.raises(WorkloadError, match="compile is 'fast'"):
        Settings(compile="fast")
