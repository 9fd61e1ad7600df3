"""The knobs of an evaluation: what must be equal is, token for token, and nothing gets lost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from bench.optimizations.generation import PLANS, PlanParts, make_treatment
from bench.optimizations.generation_lab import (
    BATCHES_PER_WORKER,
    PASS,
    Evaluator,
    open_pass,
    padding_facts,
    processes_obstacle,
    workers_here,
)
from bench.optimizations.generation_pass import (
    Answer,
    Pass,
    Ranks,
    Settings,
    ShareError,
    merge,
    shard,
)
from bench.textgen.workload import SIZES, WORKLOAD
from diagnose.measure.jobs import load
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


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there are here."""
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1})


def fake_pass(count: int = 10, **changes: object) -> tuple[Pass, FakeGenerator]:
    generator = FakeGenerator()
    questions = dict(enumerate(open_questions(None, count)))
    settings = Settings(**{"batch_size": 4, **changes})  # type: ignore[arg-type]
    return Pass(generator, questions, settings), generator


@pytest.mark.parametrize(
    ("workload", "key"),
    [
        *(("textgen", key) for key in ("batch_4", "batch_half_more", "workers_4")),
        *(("textgen", key) for key in ("static_cache", "sort_by_length", "kv_cache")),
        pytest.param("textgen", "processes_2", marks=pytest.mark.child),
        # Tiles of several pictures share one batch, so that a wrong order would show.
        ("vqa", "sort_by_length"),
    ],
)
def test_a_real_model_answers_the_same_token_for_token(workload: str, key: str) -> None:
    job = load(workload)
    assert job.treatment is not None
    optimization = job.treatment().find(key)
    lab = Lab(torch.device("cpu"), job.sizes["tiny"], seed=0)
    assert optimization.obstacle(lab) == ""
    equality = prove(optimization, optimization.after, lab)
    assert equality.claim == "equal"
    names = {check.name for check in equality.checks}
    assert names >= {"per sample tokens", "per sample scores", "places"}
    assert [check for check in equality.checks if not check.equal] == []


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


@pytest.mark.child
def test_two_processes_answer_like_one(tmp_path: Path) -> None:
    """Also with loader processes of their own, as plan C has them."""
    evaluator = Evaluator(GENERATION)
    with open_pass(evaluator, FAKE_LAB, {}) as alone:
        expected = alone.run()
    with open_pass(evaluator, FAKE_LAB, {"processes": 2, "workers": 1}) as shared:
        assert isinstance(shared, Ranks)
        assert shared.run() == expected
        assert list(shared.run()) == list(expected), "in the order of the questions, every time"


@pytest.mark.child
def test_a_rank_that_cannot_start_ends_the_trial() -> None:
    with pytest.raises(RuntimeError, match="a rank ended before it was ready"):
        Ranks(_fail, dict(enumerate(open_questions(None, 4))), Settings(2, processes=2))


def _fail(rank: int) -> FakeGenerator:
    raise OSError("no such model")


@pytest.mark.parametrize("count", [0, 1, 7])
@pytest.mark.parametrize("ranks", [1, 3])
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


def test_what_cannot_act_here_is_not_applicable(
    two_cores: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = (*FAKE.optimizations, *FAKE.parts)
    reasons = {each.key: each.obstacle(FAKE_LAB) for each in known}
    for key in ("pin_memory", "non_blocking"):
        assert "not applicable on the CPU" in reasons[key]
        assert FAKE.find(key).obstacle(Lab(torch.device("cuda"), SIZE, 0)) == ""
    assert "accelerator" in reasons["compile"]
    assert not reasons["processes_2"]
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0})
    assert "2 processes need as many core(s), and there is 1" in processes_obstacle(FAKE_LAB)
    assert FAKE.find("plan_c").obstacle(FAKE_LAB)


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.key)
def test_a_plan_has_all_its_parts_and_they_ask_the_same_questions(
    plan: PlanParts, two_cores: None
) -> None:
    made = FAKE.find(plan.key)
    assert made.facts is not None
    told = made.facts(FAKE_LAB)
    assert str(told["parts"]).split(", ") == list(plan.parts)
    assert str(told["inert"]).split(", ") == ["pin_memory", "non_blocking"]
    assert told["batch_scale"] == SIZE.batch_size / 32
    if "processes_2" not in plan.parts:  # there is no card here that processes could share
        assert made.facts(Lab(torch.device("cuda"), SIZE, 0))["inert"] == ""
    assert [each.key for each in made.parts] == list(plan.parts)
    acting = [each for each in made.parts if not each.obstacle(FAKE_LAB)]
    (count,) = {
        samples_of(each.before, FAKE_LAB) for each in (made, *acting) if each.key != "processes_2"
    }
    size = told["after_batch_size"]
    assert isinstance(size, int)
    assert count % size == 0, "batches are whole in the plans that make them larger"


@pytest.mark.parametrize("cores", [1, 2, 64])
def test_loader_processes_have_batches_to_load_ahead(
    cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(cores)))
    workers = min(4, cores)
    assert workers_here() == workers
    made = make_treatment(GENERATION)
    assert made.find("workers_4").title.startswith(f"{workers} loader process(es)")
    for key in ("workers_4", "prefetch_2"):
        optimization = made.find(key)
        for each in (optimization.before, optimization.after):
            batches = samples_of(each, FAKE_LAB) // SIZE.batch_size
            assert batches >= BATCHES_PER_WORKER * workers
        assert optimization.facts is not None
        assert optimization.facts(FAKE_LAB)["after_workers"] == workers


def test_the_questions_of_a_small_data_set_are_asked_again() -> None:
    asked = Evaluator(GENERATION, lambda lab: 50).questions(FAKE_LAB)
    assert list(asked) == list(range(50))
    assert len({each.key for each in asked.values()}) == SIZE.shape.get("rows", 20)


def samples_of(side: Side, lab: Lab) -> int:
    """How many questions a pass would ask."""
    with side.trials[PASS](lab) as trial:
        return trial.samples_per_step


def test_the_command_tries_knobs_and_plans(tmp_path: Path) -> None:
    outcome = diagnose(
        "optimize", "--workload", "textgen", "--size", "tiny", "--smoke", "--samples", 1000,
        "--only", "batch_4", "plan_b", "tokens_16", "--label", "g",
        "--reports", tmp_path,
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    record = json.loads((tmp_path / "g" / "optimize.json").read_text())
    assert record["samples"] == 1000
    made = {(each["key"], each["form"]): each for each in record["comparisons"]}
    assert made["pin_memory", "after"]["status"] == "skipped"
    plan = made["plan_b", "after"]
    for key in ("batch_double", "tokens_8", "workers_4"):
        assert made[key, "after"]["facts"]["within"] == "plan_b"
        assert made[key, "after"]["before"] == plan["before"], "the same slots of the base"
    assert "within" not in made["tokens_16", "after"]["facts"], "asked for alone"
    leaked = made["batch_4", "as published"]
    assert leaked["before"] is None, "nothing is timed that is not equal"
    assert plan["facts"]["inert"] == "pin_memory, non_blocking"
    (mapped,) = record["maps"]
    assert mapped["form"] == "evaluation pass"


def test_samples_need_a_job_that_evaluates(tmp_path: Path) -> None:
    outcome = diagnose(
        "optimize", "--workload", TREATED, "--samples", 5, "--smoke", "--reports", tmp_path
    )
    assert outcome.code == 2
    assert "evaluates nothing, so --samples has no use" in outcome.complaint


def test_a_config_is_built_for_every_batch_or_once_and_it_is_the_one_in_use(
    real: Treatment, monkeypatch: pytest.MonkeyPatch
) -> None:
    import transformers

    built = []

    class Counted(transformers.GenerationConfig):  # type: ignore[misc]
        def __init__(self, **options: object) -> None:
            built.append("eos_token_id" in options)
            super().__init__(**options)

    monkeypatch.setattr(transformers, "GenerationConfig", Counted)
    optimization, counts = real.find("config_once"), []
    for each in (optimization.before, optimization.after):
        with each.trials[PASS](LAB) as trial:
            trial.step()
            built.clear()
            trial.step()
            counts.append(sum(built))
    assert counts == [trial.samples_per_step // LAB.size.batch_size, 0]
