"""The knobs of an evaluation: what must be equal is, token for token, and nothing gets lost."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from bench.optimizations.generation import PLANS, make_treatment
from bench.optimizations.generation_lab import (
    BATCHES_PER_WORKER,
    MOST_PROCESSES,
    PASS,
    SHORT,
    Evaluator,
    open_pass,
    padding_facts,
    processes_obstacle,
    processes_of,
    settings_of,
    share_within,
    workers_here,
)
from bench.optimizations.generation_pass import (
    Answer,
    Pass,
    Settings,
    cut_at_own_length,
    shard,
    split,
)
from bench.optimizations.generation_ranks import Ranks, ShareError, merge
from bench.optimizations.generation_short import BATCHES
from bench.textgen.workload import SIZES, WORKLOAD
from diagnose.analyze.optimize import effects
from diagnose.measure.optimize.experiment import prove
from diagnose.workload import Lab, Optimization, Side, Treatment
from tests.support.cli import ROOT, diagnose
from tests.support.fake_generator import GENERATION, SIZE, FakeGenerator, open_questions

FAKE_LAB = Lab(torch.device("cpu"), SIZE, seed=0)
LAB = Lab(torch.device("cpu"), SIZES["tiny"], seed=0)
FAKE = make_treatment(GENERATION)
KEYS = [each.key for each in FAKE.optimizations]
TREATED = ROOT / "tests" / "support" / "jobs" / "treated.py"
# Another process each: tried once, by the test that is about them.
WITH_PROCESSES = ("processes_2", "plan_c")


@pytest.fixture(scope="module")
def real() -> Treatment:
    assert WORKLOAD.treatment is not None
    return WORKLOAD.treatment()


def fake_pass(count: int = 10, **changes: object) -> tuple[Pass, FakeGenerator]:
    generator = FakeGenerator()
    questions = dict(enumerate(open_questions(None, count)))
    settings = Settings(**{"batch_size": 4, **changes})  # type: ignore[arg-type]
    return Pass(generator, questions, settings), generator


@pytest.mark.parametrize(
    "key",
    ["batch_4", "batch_half_more", "workers_4", "static_cache", "sort_by_length", "kv_cache"],
)
def test_a_real_model_answers_the_same_token_for_token(key: str, real: Treatment) -> None:
    optimization = real.find(key)
    equality = prove(optimization, optimization.after, LAB)
    assert equality.claim == "equal"
    assert {check.name for check in equality.checks} >= {"per sample tokens", "per sample scores"}
    assert [check for check in equality.checks if not check.equal] == []


def test_questions_about_pictures_are_answered_the_same() -> None:
    """Tiles of several pictures share one batch, so that a wrong order would show."""
    from bench.vqa.workload import SIZES as VQA_SIZES
    from bench.vqa.workload import WORKLOAD as VQA

    assert VQA.treatment is not None
    optimization = VQA.treatment().find("sort_by_length")
    lab = Lab(torch.device("cpu"), VQA_SIZES["tiny"], seed=0)
    equality = prove(optimization, optimization.after, lab)
    assert [check.name for check in equality.checks if not check.equal] == []


def test_answers_cut_at_their_own_length_begin_with_the_question(real: Treatment) -> None:
    optimization = real.find("batch_4")
    (published,) = optimization.published
    equality = prove(optimization, published, LAB)
    tokens = next(check for check in equality.checks if check.name == "per sample tokens")
    assert not tokens.equal
    assert tokens.differing_samples is not None
    assert 0 < tokens.differing_samples < tokens.samples, "the longest of a batch has no padding"


def test_a_low_limit_changes_answers_and_says_so(real: Treatment) -> None:
    optimization = real.find("tokens_8")
    assert optimization.facts is not None
    facts = optimization.facts(LAB)
    assert facts["may_change_answers"] is True
    assert facts["asks_usual_answers_only"] is True
    before, after = facts["before_mean_tokens"], facts["after_mean_tokens"]
    assert isinstance(before, float)
    assert isinstance(after, float)
    assert after < before
    equality = prove(optimization, optimization.after, LAB)
    assert equality.claim == "not claimed"
    assert not all(check.equal for check in equality.checks)


@pytest.mark.parametrize(
    "optimization",
    [each for each in FAKE.optimizations if each.key not in WITH_PROCESSES],
    ids=lambda each: each.key,
)
def test_every_knob_can_be_tried_and_keeps_its_claim(optimization: Optimization) -> None:
    """With a generator whose answers are known, so that only the loop around it can be wrong."""
    if optimization.obstacle(FAKE_LAB):
        return
    equality = prove(optimization, optimization.after, FAKE_LAB)
    assert equality.checks
    equal = all(check.equal for check in equality.checks)
    assert equal or not optimization.claims_equality
    assert list(optimization.after.trials) == list(optimization.before.trials) == [PASS]
    with optimization.after.trials[PASS](FAKE_LAB) as trial:
        answered = trial.step()
    assert isinstance(answered, dict)
    assert sorted(answered) == list(range(trial.samples_per_step))


def test_two_processes_answer_like_one(tmp_path: Path) -> None:
    """Also with loader processes of their own, as plan C has them."""
    evaluator = Evaluator(GENERATION)
    with open_pass(evaluator, FAKE_LAB, {}) as alone:
        expected = alone.run()
    with open_pass(evaluator, FAKE_LAB, {"processes": 2, "workers": 1}) as shared:
        assert isinstance(shared, Ranks)
        assert shared.run() == expected
        assert list(shared.run()) == list(expected), "in the order of the questions, every time"


def test_processes_with_a_real_model_lose_no_answer_and_give_none_twice(real: Treatment) -> None:
    optimization = real.find("processes_2")
    assert optimization.obstacle(LAB) == ""
    equality = prove(optimization, optimization.after, LAB)
    assert {check.name for check in equality.checks} >= {"per sample tokens", "places"}
    assert [check.name for check in equality.checks if not check.equal] == []
    assert optimization.facts is not None
    facts = optimization.facts(LAB)
    assert (facts["after_processes"], facts["before_batches"], facts["after_batches"]) == (2, 3, 2)


@pytest.mark.parametrize(("devices", "processes"), [(1, 2), (2, 2), (5, 5), (16, MOST_PROCESSES)])
def test_each_device_gets_a_process(
    devices: int, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: devices)
    lab = Lab(torch.device("cuda"), SIZE, 0)
    assert processes_of(lab) == processes
    assert bool(processes_obstacle(lab)) == (devices < 2)
    assert processes_of(FAKE_LAB) == 2


def test_a_rank_that_cannot_start_ends_the_trial() -> None:
    with pytest.raises(RuntimeError, match="a rank ended before it was ready"):
        Ranks(_fail, dict(enumerate(open_questions(None, 4))), Settings(2, processes=2))


def _fail(rank: int) -> FakeGenerator:
    raise OSError("no such model")


@pytest.mark.parametrize("count", range(8))
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_shards_are_every_question_once(count: int, ranks: int) -> None:
    questions = dict(enumerate(open_questions(None, count)))
    shares = [shard(questions, rank, ranks) for rank in range(ranks)]
    answered = [dict.fromkeys(share, Answer((), 0.0)) for share in shares]
    assert list(merge(answered, questions)) == list(questions)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.mark.parametrize("shares", [[[0, 1], [1, 2]], [[0], [2]], [[0, 1, 2], [3]]])
def test_a_sample_lost_or_counted_twice_is_an_error(shares: list[list[int]]) -> None:
    questions = dict(enumerate(open_questions(None, 3)))
    with pytest.raises(ShareError, match="3 questions were asked"):
        merge([dict.fromkeys(share, Answer((), 0.0)) for share in shares], questions)


def test_a_pass_answers_and_scores_every_question() -> None:
    work, generator = fake_pass()
    answers = work.run()
    assert sorted(answers) == list(range(10))
    assert [answers[place].score for place in range(4)] == [0.0, 1.0, 0.0, 1.0]
    assert [rows for rows, _ in generator.batches] == [4, 4, 2]


def test_sorting_saves_padding_and_changes_no_answer() -> None:
    plain, sorted_ = fake_pass(20), fake_pass(20, sort_by_length=True)
    assert plain[0].run() == sorted_[0].run()
    widths = [width for _, width in sorted_[1].batches]
    assert widths == sorted(widths, reverse=True)
    # Of all 20 rows, however few a pass asks.
    facts = padding_facts(Evaluator(GENERATION), {}, {"sort_by_length": True})(FAKE_LAB)
    before, after = facts["before_padding_share"], facts["after_padding_share"]
    # By hand, sorted: 20 19 18 17 | 16 ... 1 in fours, each 6 slots short of its widest.
    assert after == pytest.approx(1 - 210 / (4 * (20 + 16 + 12 + 8 + 4)))
    assert isinstance(before, float)
    assert before > 0.2


def test_the_leak_is_the_end_of_the_question() -> None:
    batch = {
        "input_ids": torch.tensor([[0, 0, 5, 6], [1, 2, 3, 4]]),
        "attention_mask": torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]]),
    }
    assert cut_at_own_length(batch, [(7,), (8,)]) == [(5, 6, 7), (8,)]


def test_coverage_counts_every_reference() -> None:
    lengths = Evaluator(GENERATION).reference_lengths(FAKE_LAB)
    assert len(lengths) == 20
    assert {len(each) for each in lengths} == {1}
    assert share_within([1, 2, 3, 10], 3) == 0.75
    assert share_within([4], 3) == 0.0


def test_batches_hold_everybody() -> None:
    assert split(range(5), 2) == [[0, 1], [2, 3], [4]]
    assert split([], 2) == []


def test_what_cannot_act_on_the_cpu_is_not_applicable() -> None:
    reasons = {each.key: each.obstacle(FAKE_LAB) for each in FAKE.optimizations}
    for key in ("pin_memory", "non_blocking"):
        assert "not applicable on the CPU" in reasons[key]
        assert FAKE.find(key).obstacle(Lab(torch.device("cuda"), SIZE, 0)) == ""
    assert "accelerator" in reasons["compile"]


def test_one_core_cannot_be_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0})
    assert "2 processes need as many core(s), and there is 1" in processes_obstacle(FAKE_LAB)
    assert FAKE.find("plan_c").obstacle(FAKE_LAB)


def test_plans_are_made_of_knobs_that_are_also_tried_alone() -> None:
    for plan in PLANS:
        assert set(plan.parts) <= set(KEYS)
        facts = FAKE.find(plan.key).facts
        assert facts is not None
        told = facts(FAKE_LAB)
        used = str(told["parts"]).split(", ")
        assert "pin_memory" not in used
        assert "pin_memory (not applicable" in str(told["left_out"])
        assert all(key in plan.parts for key in used)
    assert effects.PASS == PASS


def test_a_plan_and_its_parts_ask_the_same_questions() -> None:
    for plan in PLANS:
        facts = FAKE.find(plan.key).facts
        assert facts is not None
        parts = [FAKE.find(key) for key in str(facts(FAKE_LAB)["parts"]).split(", ")]
        asked = {samples_of(each.before, FAKE_LAB) for each in (FAKE.find(plan.key), *parts)}
        assert len(asked) == 1
        for part in parts:
            assert part.facts is None or "starts_elsewhere" not in part.facts(FAKE_LAB)


def test_on_an_accelerator_the_loader_is_part_of_the_plan() -> None:
    lab = Lab(torch.device("cuda"), SIZE, 0)
    loader, plan = FAKE.find("workers_4").facts, FAKE.find("plan_a").facts
    assert loader is not None
    assert plan is not None
    assert "starts_elsewhere" not in loader(lab)
    assert str(plan(lab)["parts"]).split(", ") == list(PLANS[0].parts)


def test_batches_are_whole_in_the_plans_that_make_them_larger() -> None:
    count = samples_of(FAKE.find("plan_a").before, FAKE_LAB)
    assert (count % SIZE.batch_size, count % (SIZE.batch_size * 3 // 2)) == (0, 0)
    assert samples_of(FAKE.find("plan_b").before, FAKE_LAB) % (SIZE.batch_size * 2) == 0


@pytest.mark.parametrize("key", ["workers_4", "prefetch_2"])
@pytest.mark.parametrize("cores", [1, 2, 64])
def test_loader_processes_have_batches_to_load_ahead(
    key: str, cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(cores)))
    workers = min(4, cores)
    assert workers_here() == workers
    optimization = make_treatment(GENERATION).find(key)
    for each in (optimization.before, optimization.after):
        batches = samples_of(each, FAKE_LAB) // SIZE.batch_size
        assert batches >= BATCHES_PER_WORKER * workers
    assert optimization.facts is not None
    assert optimization.facts(FAKE_LAB)["after_workers"] == workers
    if key == "workers_4":
        assert optimization.title.startswith(f"{workers} loader process(es)")


def test_a_pass_of_few_batches_has_no_use_for_loader_processes() -> None:
    facts = FAKE.find("plan_a").facts
    assert facts is not None
    assert "workers_4 (at most 3 batches are too few for" in str(facts(FAKE_LAB)["left_out"])


def test_what_is_done_for_each_batch_is_done_for_more_than_two() -> None:
    assert samples_of(FAKE.find("log_once").before, FAKE_LAB) > 2 * SIZE.batch_size


def test_on_the_cpu_answers_are_usual_and_small_data_are_asked_again() -> None:
    asked = Evaluator(GENERATION, lambda lab: 50).questions(FAKE_LAB)
    assert list(asked) == list(range(50))
    assert max(len(text) for each in asked.values() for text in each.references) <= SHORT
    assert len({each.key for each in asked.values()}) < 20, "some have longer answers"
    assert Evaluator(GENERATION).asks_usual_answers_only(FAKE_LAB)
    assert not Evaluator(GENERATION).asks_usual_answers_only(Lab(torch.device("cuda"), SIZE, 0))


def samples_of(side: Side, lab: Lab) -> int:
    """How many questions a pass would ask."""
    with side.trials[PASS](lab) as trial:
        return trial.samples_per_step


def test_the_base_is_the_published_job() -> None:
    base = settings_of(FAKE_LAB, {})
    assert base.batch_size == SIZE.batch_size
    assert (base.max_new_tokens, base.workers, base.pin_memory) == (32, 0, False)
    assert base.config_per_batch
    assert base.log_every_batch
    assert base.score_per_sample


def test_single_samples_are_held_against_the_guides_batches() -> None:
    assert KEYS[: len(BATCHES)] == [f"batch_{size}" for size in BATCHES]
    published = [each.key for each in FAKE.optimizations if each.published]
    assert published == ["batch_4"]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    reports = tmp_path_factory.mktemp("reports")
    outcome = diagnose(
        "optimize", "--workload", "textgen", "--size", "tiny", "--smoke", "--samples", 1000,
        "--only", "batch_4", "pin_memory", "tokens_8", "plan_b", "--label", "g",
        "--reports", reports,
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    return lambda name: (reports / "g" / name).read_text()


def test_the_command_tries_knobs_and_plans(told: Callable[[str], str]) -> None:
    record = json.loads(told("optimize.json"))
    assert record["samples"] == 1000
    made = {(each["key"], each["form"]): each for each in record["comparisons"]}
    assert made["pin_memory", "after"]["status"] == "skipped"
    leaked = made["batch_4", "as published"]
    assert leaked["before"] is None, "nothing is timed that is not equal"
    assert made["plan_b", "after"]["facts"]["parts"] == "batch_double, tokens_8"
    (mapped,) = record["maps"]
    assert mapped["form"] == "evaluation pass"


def test_the_report_has_coverage_plans_and_totals(told: Callable[[str], str]) -> None:
    text = told("report.md")
    for title in ("## Plans", "## How long it takes"):
        assert f"\n{title}\n" in text
    assert "<summary>Coverage</summary>" in text
    assert "For 1000 samples." in text
    assert "NOT\\_EQUAL" in text


@pytest.mark.parametrize("samples", ["0", "-3", "many"])
def test_a_wrong_number_of_samples_is_refused(samples: str) -> None:
    outcome = diagnose("optimize", "--workload", "textgen", "--samples", samples)
    assert outcome.code == 2
    assert "no number of samples" in outcome.err or "expected one argument" in outcome.err


def test_samples_need_a_job_that_evaluates(tmp_path: Path) -> None:
    outcome = diagnose(
        "optimize", "--workload", TREATED, "--samples", 5, "--smoke", "--reports", tmp_path
    )
    assert outcome.code == 2
    assert "evaluates nothing, so --samples has no use" in outcome.complaint
