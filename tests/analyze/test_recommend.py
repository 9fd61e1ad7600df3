"""Does the recommended command hold what is proven, and nothing that is not?"""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.dgca.arguments import parse
from diagnose.analyze.scaling.options import judge_options
from diagnose.analyze.scaling.recommend import Recommendation, recommend
from diagnose.records.experiments import Comparison
from diagnose.records.ranks import ScalingRecord
from tests.support.records.experiments import compare, not_claimed
from tests.support.records.scaling import Losses, ddp_options, scaling_record
from tests.support.rendered import rendered


def advise(record: ScalingRecord) -> Recommendation:
    return recommend(record, judge_options(record))


def flags(*comparisons: Comparison) -> str:
    record = replace(scaling_record(comparisons=comparisons), cadence=None)
    return " ".join(flag.text for flag in advise(record).flags)


def test_only_what_is_proven_equal_and_faster_becomes_a_flag() -> None:
    assert flags(*ddp_options()) == (
        "--train_batch_size 128 --gradient_accumulation_steps 4 --ddp_bucket_cap_mb 200"
    )
    assert flags(compare("accumulate_4", 1.0), compare("static_graph", 0.8)) == ""
    assert flags(compare("accumulate_4", 1.4, form="as published")) == ""
    assert flags(compare("accumulate_2", 1.4, blocks=4)) == ""
    assert flags(compare("accumulate_2", 1.4, equality=not_claimed())) == ""
    assert flags(compare("static_graph", 1.2)) == "--ddp_static_graph"


def test_a_default_that_is_proven_slower_is_undone() -> None:
    assert flags(compare("bucket_cap_100", 0.8)) == "--ddp_bucket_cap_mb 25"


@pytest.mark.parametrize(
    ("graph", "expected"), [(1.2, "--gradient_accumulation_steps 4"), (1.8, "--ddp_static_graph")]
)
def test_a_static_graph_and_accumulation_exclude_each_other(graph: float, expected: str) -> None:
    record = scaling_record(
        comparisons=(compare("accumulate_4", 1.4), compare("static_graph", graph))
    )
    advice = advise(record)
    assert expected in advice.command
    assert ("--ddp_static_graph" in advice.command) != ("accumulation_steps" in advice.command)
    assert any("exclude each other" in remark for remark in advice.remarks)


def test_what_the_script_has_no_option_for_is_a_remark() -> None:
    remarks = advise(scaling_record(comparisons=ddp_options())).remarks
    assert any("fp16_compress_hook" in each and "not equal" in each for each in remarks)


def test_every_flag_is_an_option_of_the_training_script() -> None:
    command = advise(scaling_record(comparisons=ddp_options())).command
    words = command.split("bench/dgca/train.py ")[1].split()
    options = parse(words)
    assert options.gradient_accumulation_steps == 4
    assert options.train_batch_size == 128
    assert options.ddp_bucket_cap_mb == 200
    assert options.eval_steps == options.save_steps == 1000


def test_ranks_that_are_slower_than_one_are_not_recommended() -> None:
    alone = advise(scaling_record(Losses(communication=0.6)))
    assert alone.launcher.text == "python"
    rescued = scaling_record(Losses(communication=0.2), comparisons=[compare("accumulate_4", 2.5)])
    assert advise(rescued).launcher.text == "torchrun --nproc-per-node=2"


def test_another_job_is_told_what_to_change_instead() -> None:
    record = scaling_record(comparisons=ddp_options())
    own = replace(record, workload=replace(record.workload, name="my_job"))
    text = rendered(own)
    assert "bench/dgca/train.py" not in text
    assert "DDP(`bucket_cap_mb=200`)" in text
