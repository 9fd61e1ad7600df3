"""Do the data types survive JSON, and does nothing else pass for one?"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnose.records.codec import dumps, from_dict, to_dict
from diagnose.records.header import Fact, Reading
from diagnose.records.run import Measurement, RunRecord, Timing
from diagnose.records.script import ScriptRecord
from tests.support.records.run import measurement, on_cpu, run_record, slow_full_model, timing
from tests.support.records.script import record as script_record

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
READINGS = st.builds(Reading, NUMBERS, TEXT) | st.builds(
    Reading, st.none(), TEXT.filter(lambda text: text != "")
)
SETTINGS = st.dictionaries(TEXT, st.none() | st.booleans() | st.integers() | NUMBERS | TEXT)
TIMINGS = st.builds(
    Timing,
    steps_per_slot=st.integers(),
    slot_starts=st.lists(NUMBERS, max_size=3).map(tuple),
    slot_seconds=st.lists(NUMBERS, max_size=3).map(tuple),
    warmup_seconds=st.lists(NUMBERS, max_size=3).map(tuple),
    not_steady=TEXT,
    unmet=TEXT,
    overhead_seconds=NUMBERS,
)
MEASUREMENTS = st.builds(
    Measurement,
    name=TEXT,
    role=st.sampled_from(["result", "reference"]),
    settings=SETTINGS,
    timing=TIMINGS,
    samples_per_step=st.none() | st.integers(),
    flops_per_step=READINGS,
    bytes_per_step=READINGS,
    peak_bytes=READINGS,
    gpus=st.just(()),
    gpus_reason=TEXT,
)


def parsed(record: object) -> Any:
    return json.loads(dumps(record))


@given(MEASUREMENTS)
def test_a_measurement_comes_back_equal(recorded: Measurement) -> None:
    back = from_dict(Measurement, parsed(recorded))
    assert back == recorded
    # 1, 1.0 and True are equal in Python; in a setting they are not the same.
    assert [type(value) for value in back.settings.values()] == [
        type(value) for value in recorded.settings.values()
    ]


@pytest.mark.parametrize("record", [run_record(gpus=2), slow_full_model(), on_cpu()])
def test_a_run_comes_back_equal(record: RunRecord) -> None:
    back = from_dict(RunRecord, parsed(record))
    assert back == record
    assert dumps(from_dict(RunRecord, parsed(back))) == dumps(back)


def test_a_newer_key_is_no_error() -> None:
    data = {**to_dict(Fact("x")), "added_later": [1, 2]}
    assert from_dict(Fact, data) == Fact("x")


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_never_written(number: float) -> None:
    clock = replace(timing(0.1), overhead_seconds=number)
    with pytest.raises(ValueError, match="not JSON compliant"):
        dumps(measurement("x", clock))


@pytest.mark.parametrize(
    ("key", "value", "complaint"),
    [
        ("name", 3, "record.name: expected str, found int"),
        ("role", "judge", "'judge' is not one of result, reference"),
        ("settings", [], "record.settings: expected an object"),
        ("settings", {"batch": {}}, "record.settings.batch"),
        ("samples_per_step", "many", "record.samples_per_step"),
        ("samples_per_step", True, "record.samples_per_step"),
        ("flops_per_step", None, "record.flops_per_step: expected an object"),
        ("flops_per_step", {"value": None}, "needs a reason"),
        ("gpus", {}, "record.gpus: expected a list"),
    ],
)
def test_a_wrong_value_is_named(key: str, value: object, complaint: str) -> None:
    data = {**parsed(measurement("x", 0.1)), key: value}
    with pytest.raises(ValueError) as caught:  # noqa: PT011  (the text is compared below)
        from_dict(Measurement, data)
    assert complaint in str(caught.value)


def test_a_number_too_large_for_a_float_is_refused() -> None:
    data = parsed(Reading(1.0))
    data["value"] = 10**400
    with pytest.raises(ValueError, match="value"):
        from_dict(Reading, data)


def test_a_missing_key_is_named() -> None:
    data = parsed(measurement("x", 0.1))
    del data["timing"]
    with pytest.raises(ValueError, match=r"record\.timing: missing"):
        from_dict(Measurement, data)


def test_pairs_of_different_types_come_back_equal() -> None:
    record = script_record(prefixes=((1, 0.5), (2, 0.25)))
    written = json.loads(json.dumps(to_dict(record)))
    assert from_dict(ScriptRecord, written) == record
    wrong = {**written, "prefixes": [[1, 0.5, 3]]}
    with pytest.raises(ValueError, match=r"prefixes\[0\]: expected 2 values, found 3"):
        from_dict(ScriptRecord, wrong)
