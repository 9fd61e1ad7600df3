"""`batch-size` for jobs that write: real forward and generate steps, tiles, a model on disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from bench.generation.reader import GreedyGenerator
from bench.textgen.workload import WORKLOAD as TEXTGEN
from bench.vqa.workload import WORKLOAD as VQA
from diagnose.measure.batch_size import probe
from diagnose.measure.batch_size.answers import (
    QUESTIONS,
    as_evaluated,
    describe_inputs,
    hardest_batch,
)
from diagnose.measure.clock import EFFORTS
from diagnose.measure.jobs import load
from diagnose.measure.machine.device import open_device
from diagnose.measure.stages.plan import Context
from diagnose.records.header import Reading
from diagnose.workload import Decoding, WorkloadError
from tests.support.cli import Outcome, diagnose
from tests.support.model_directories import write_text_model, write_vision_model

QUESTION = {"question": "what is this", "answer": "a cat"}


def find(reports: Path, *options: object, **extra: str) -> Outcome:
    return diagnose(
        "batch-size", "--device", "cpu", "--smoke", "--no-auto-adjust-batch-size",
        "--reports", reports, *options, **extra,
    )  # fmt: skip


def read(reports: Path) -> dict[str, Any]:
    (path,) = reports.glob("*/batch_size.json")
    record: dict[str, Any] = json.loads(path.read_text())
    return record


def test_a_model_and_pictures_of_the_user_for_each_cap(tmp_path: Path) -> None:
    model = write_vision_model(tmp_path / "my-model")
    for name, size in {"photo": (640, 480), "panorama": (640, 120)}.items():
        Image.new("RGB", size).save(tmp_path / f"{name}.png")
    asked = [{**QUESTION, "image": f"{name}.png"} for name in ("photo", "panorama")]
    data = tmp_path / "asked.jsonl"
    data.write_text("\n".join(map(json.dumps, asked)))
    reports = tmp_path / "reports"
    outcome = find(
        reports, "--workload", "vqa", "-m", model, "-d", data, "--max-crops-list", 1, 12,
        "--batch-size", 2, "--torch_dtype", "bfloat16", "--max_new_tokens", 4,
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    record = read(reports)
    assert record["header"]["label"].endswith("-vqa-my-model-asked-bfloat16-4-tokens-smoke")
    assert (record["task"], record["workload"]["size"]) == ("generation", "my-model")
    one, twelve = (each["settings"] for each in record["configurations"])
    assert (one["dtype"], one["new_tokens"]) == ("bfloat16", 4)
    timed = record["configurations"][0]["sweep"]["measurements"]
    assert {each["settings"]["dtype"] for each in timed} == {"bfloat16"}
    assert (one["tiles_least"], one["tiles_most"]) == (1, 1)
    assert (twelve["tiles_least"], twelve["tiles_most"]) == (6, 13), "5 by 1, 4 by 3, an overview"
    assert twelve["prompt_tokens_most"] > one["prompt_tokens_most"]
    assert all(each["sweep"]["status"] == "done" for each in record["configurations"])
    assert all(each["loader"]["status"] == "done" for each in record["configurations"])
    (report,) = reports.glob("*/report.md")
    assert "`max_crops` 12 is only a cap" in report.read_text()


def test_lack_of_memory_while_answering_is_a_result(tmp_path: Path) -> None:
    outcome = find(
        tmp_path, "--workload", "tests/support/jobs/limited.py", "--batch-size", 2**15,
        ROOM_BYTES=str(256 * 2**20),
    )  # fmt: skip
    assert outcome.code == 3
    assert "batch 32768 does not fit: " in outcome.complaint
    assert "can't allocate memory" in outcome.complaint
    assert read(tmp_path)["configurations"][0]["probes"][0]["status"] == "out of memory"


@pytest.fixture(scope="module")
def context() -> Context:
    return Context(open_device("cpu"), VQA, "tiny", VQA.sizes["tiny"], EFFORTS["smoke"], seed=0)


def test_a_probe_looks_at_the_hardest_question(context: Context) -> None:
    job = probe.sized(context, 3, 12)
    assert VQA.generation is not None
    generator = VQA.generation.wrap(job.model(VQA.model), job.size)
    batch = hardest_batch(job, generator)
    facts = describe_inputs(job)
    assert batch["input_ids"].shape == (3, facts["prompt_tokens_most"])
    assert len(batch["pixel_values"]) == 3 * int(str(facts["tiles_most"]))
    assert batch["attention_mask"].all()


@pytest.mark.long
def test_a_probe_runs_a_forward_pass_and_whole_answers(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Decoding] = []
    generate = GreedyGenerator.generate

    def record(self: Any, batch: Any, decoding: Decoding) -> Any:
        asked.append(decoding)
        written = generate(self, batch, decoding)
        assert {len(each) for each in written} == {decoding.max_new_tokens}
        return written

    monkeypatch.setattr(GreedyGenerator, "generate", record)
    made, clean = probe.probe_batch(probe.sized(context, 2, 1), Reading(None, "x"), mixed=False)
    assert (made.status, clean, len(made.step_seconds)) == ("fits", True, probe.TIMED_STEPS)
    assert [each.max_new_tokens for each in asked] == [1] + [8] * (1 + probe.TIMED_STEPS)
    assert not any(each.natural_stop for each in asked)
    short, _ = probe.probe_batch(
        probe.sized(context, 2, 1), Reading(None, "x"), mixed=False, enough_seconds=0.0
    )
    assert len(short.step_seconds) == 1, "a slow one ends when its memory is known"


def test_the_longest_of_all_questions_is_the_hardest(tmp_path: Path) -> None:
    asked = [{"question": f"what is {n}", "answer": "it"} for n in range(3 * QUESTIONS)]
    asked[-2]["question"] = 100 * "what is this "
    data = tmp_path / "asked.jsonl"
    data.write_text("\n".join(map(json.dumps, asked)))
    job = Context(
        open_device("cpu"), TEXTGEN, "tiny", TEXTGEN.sizes["tiny"], EFFORTS["smoke"], 0, data
    )
    facts = describe_inputs(job)
    assert float(str(facts["prompt_tokens_most"])) > 10 * float(str(facts["prompt_tokens_mean"]))


def test_the_weights_are_loaded_as_they_were_saved(tmp_path: Path) -> None:
    model = write_text_model(tmp_path / "model")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"dtype": "bfloat16"}))
    loaded = load("textgen", model)
    job = as_evaluated(loaded, model, "auto", 9, seed=0)
    (size,) = job.sizes.values()
    assert size.shape["new_tokens"] == 9
    assert {each.dtype for each in job.model.build(size).parameters()} == {torch.bfloat16}
    assert as_evaluated(loaded, model, None, None, seed=0) is loaded


def test_a_job_that_writes_nothing_has_no_answers_to_lengthen() -> None:
    job = load("tests/support/jobs/sized.py")
    assert as_evaluated(job, None, "auto", None, seed=0) is job
    with pytest.raises(WorkloadError, match=r"sized writes no answers, so --max-new-tokens has no"):
        as_evaluated(job, None, "auto", 4, seed=0)
    with pytest.raises(WorkloadError, match=r"so --torch-dtype has no use"):
        as_evaluated(job, None, "bfloat16", None, seed=0)


def test_a_cap_has_a_dataset_of_its_own(context: Context) -> None:
    tiles = [
        len(probe.sized(context, 2, cap).dataset("questions")[0]["pixel_values"]) for cap in (1, 12)
    ]
    assert tiles[0] == 1 < tiles[1]
