"""How is a setting of an evaluation tried? One pass over the same questions, on both sides."""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bench.generation.reader import generation_config
from bench.optimizations.generation_pass import (
    Answer,
    Pass,
    Ranks,
    Settings,
    in_order,
    split,
)
from bench.optimizations.lab import Changes, Facts
from diagnose.workload import (
    Fact,
    Generation,
    Generator,
    Lab,
    OpenGenerator,
    OpenTrial,
    Optimization,
    Question,
    Side,
    Trial,
)

PASS = "evaluation pass"
# Some settings are known only in the lab: multiples of its batch, as many as it has devices.
InLab = Callable[[Lab], Changes]
Way = tuple[str, Changes | InLab]  # what a side is called, and what it changes of the base

# Both sides of every experiment answer the same questions, and so do a plan and its parts. Three
# batches are two that are half as large again; 24 are also 12 that are twice as large, and enough
# for loader processes. A CPU takes seconds for more than three.
BATCHES_ON_CPU, BATCHES_ELSEWHERE = 3, 24
ROWS = 192  # where a size does not say how many questions there are
SHORT = 10  # tokens: what the published guide calls the usual answer
CONFIGS = 200
# Fewer batches than this for each loader process, and hardly one is loaded while another is
# answered.
BATCHES_PER_WORKER = 4

WORKERS = 4
FEWEST_PROCESSES, MOST_PROCESSES = 2, 8  # the guide has eight cards

Count = Callable[[Lab], int]


def whole_batches(on_cpu: int = BATCHES_ON_CPU, elsewhere: int = BATCHES_ELSEWHERE) -> Count:
    """So many of the size's own."""
    return lambda lab: lab.size.batch_size * (on_cpu if lab.device.type == "cpu" else elsewhere)


@dataclass(frozen=True)
class Evaluator:
    """The job whose settings are tried."""

    generation: Generation
    count: Count = field(default_factory=whole_batches)

    def rows(self, lab: Lab) -> list[Question]:
        """The whole data set."""
        rows = lab.size.shape.get("rows", ROWS)
        return _kept_questions(self.generation.open_questions, lab.data, rows)

    def questions(self, lab: Lab) -> dict[int, Question]:
        """Those of one pass, by their places; those of a small data set are asked again."""
        return dict(enumerate(islice(cycle(self.rows(lab)), self.count(lab))))

    def reference_lengths(self, lab: Lab) -> list[list[int]]:
        """Tokens of every reference answer, for each question of the whole data set."""
        opener = self.opener(lab, settings_of(lab, {}))
        references = tuple(tuple(each.references) for each in self.rows(lab))
        return _kept_lengths(opener, lab.device, references)

    def batches(self, lab: Lab) -> int:
        """Of one pass, as the job is."""
        return math.ceil(self.count(lab) / lab.size.batch_size)

    def opener(self, lab: Lab, settings: Settings) -> _Opener:
        shape = tuple(lab.size.shape.items())
        return _Opener(self.generation.open_generator, shape, settings.dtype, lab.seed)

    def generator(self, lab: Lab, settings: Settings) -> Generator:
        opener = self.opener(lab, settings)
        if not settings.compile:
            return _shared_generator(opener, lab.device)
        torch.compiler.reset()
        generator = opener(lab.device)
        # The compiler's own form of the module's call; generate() calls the module.
        generator.model.compile()
        return generator


@dataclass(frozen=True)
class _Opener:
    """All that decides what a generator is; known by its name in another process."""

    open_generator: OpenGenerator
    shape: tuple[tuple[str, int], ...]
    dtype: str
    seed: int

    def __call__(self, device: torch.device) -> Generator:
        dtype: torch.dtype = getattr(torch, self.dtype)
        return self.open_generator(dict(self.shape), device, dtype=dtype, seed=self.seed)


# Reading them takes as long as a short pass, and every side asks several times.
@lru_cache(maxsize=2)
def _kept_questions(
    open_questions: Callable[[Path | None, int], list[Question]], data: Path | None, rows: int
) -> list[Question]:
    return open_questions(data, rows)


# Nothing trains here, so that trials can share a model; building one takes longer than a pass.
@lru_cache(maxsize=2)
def _shared_generator(opener: _Opener, device: torch.device) -> Generator:
    return opener(device)


# All of a data set are counted to choose the questions of a pass, and every side asks for them.
@lru_cache(maxsize=2)
def _kept_lengths(
    opener: _Opener, device: torch.device, references: tuple[tuple[str, ...], ...]
) -> list[list[int]]:
    generator = _shared_generator(opener, device)
    # What stands around every question does not stand around an answer.
    around = len(generator.encode(Question("", "", ("",))).input_ids)

    def count(text: str) -> int:
        return max(0, len(generator.encode(Question("", text, (text,))).input_ids) - around)

    return [[count(text) for text in each] for each in references]


@dataclass(frozen=True)
class _OnRank:
    """One device for each rank, or the processors that they share."""

    opener: _Opener
    kind: str

    def __call__(self, rank: int) -> Generator:
        device = torch.device(self.kind) if self.kind == "cpu" else torch.device(self.kind, rank)
        return self.opener(device)


def settings_of(lab: Lab, changes: Changes) -> Settings:
    return Settings(**{"batch_size": lab.size.batch_size, **changes})  # type: ignore[arg-type]


@contextmanager
def open_pass(evaluator: Evaluator, lab: Lab, changes: Changes) -> Iterator[Pass | Ranks]:
    settings, questions = settings_of(lab, changes), evaluator.questions(lab)
    work: Pass | Ranks
    if settings.processes > 1:
        on_rank = _OnRank(evaluator.opener(lab, settings), lab.device.type)
        work = Ranks(on_rank, questions, settings)
    else:
        work = Pass(evaluator.generator(lab, settings), questions, settings)
    try:
        yield work
    finally:
        work.close()


def open_settings(evaluator: Evaluator, changes: InLab) -> OpenTrial:
    """A trial of the base with these changes."""

    @contextmanager
    def trial(lab: Lab) -> Iterator[Trial]:
        with open_pass(evaluator, lab, changes(lab)) as work:
            count = evaluator.count(lab)
            if isinstance(work, Ranks):
                yield Trial(work.run, count, in_this_process=False)
            else:
                waits = work.waits
                yield Trial(work.run, count, waited=lambda: waits.seconds)

    return trial


def side(evaluator: Evaluator, text: str, changes: Changes | InLab) -> Side:
    """One setting: its answers token for token, its scores, and how often each was counted."""
    in_lab: InLab = changes if callable(changes) else lambda lab: changes

    def outcome(lab: Lab) -> Mapping[str, Tensor]:
        with open_pass(evaluator, lab, in_lab(lab)) as work:
            return as_tensors(work.run(), widest(evaluator, lab))

    return Side(text, outcome, {PASS: open_settings(evaluator, in_lab)})


def compare(
    evaluator: Evaluator, key: str, title: str, before: Way, after: Way, **more: Any
) -> Optimization:
    """One setting against another on the same questions; `more` is the optimisation's own."""
    return Optimization(key, title, side(evaluator, *before), side(evaluator, *after), **more)


def widest(evaluator: Evaluator, lab: Lab) -> int:
    """Tokens that a row must have room for, also where a question leaks into its answer."""
    generator = evaluator.generator(lab, settings_of(lab, {}))
    prompts = [len(generator.encode(each).input_ids) for each in evaluator.questions(lab).values()]
    return max(prompts) + settings_of(lab, {}).max_new_tokens


def as_tensors(answers: Mapping[int, Answer], width: int) -> dict[str, Tensor]:
    """Rows in the order of the questions, whatever order they were answered in."""
    places = sorted(answers)
    tokens = torch.full((len(places), width), -1)
    for row, place in enumerate(places):
        written = answers[place].tokens
        tokens[row, : len(written)] = torch.tensor(written, dtype=tokens.dtype)
    return {
        "per sample tokens": tokens,
        "per sample scores": torch.tensor([answers[place].score for place in places]),
        "places": torch.tensor(places),
    }


# --- what is recorded beside the times ---


def token_facts(evaluator: Evaluator, before: Changes, after: Changes) -> Facts:
    """How long answers are, how long they may be, and how many references fit."""

    def facts(lab: Lab) -> Mapping[str, Fact]:
        lengths = [each for row in evaluator.reference_lengths(lab) for each in row]
        found: dict[str, Fact] = {
            "may_change_answers": True,
            "natural_stop": settings_of(lab, after).natural_stop,
            "reference_answers": len(lengths),
            "reference_mean_tokens": round(statistics.fmean(lengths), 3),
            "longest_reference": max(lengths),
            f"within_{SHORT}_tokens_share": share_within(lengths, SHORT),
        }
        for name, changes in (("before", before), ("after", after)):
            limit = settings_of(lab, changes).max_new_tokens
            with open_pass(evaluator, lab, changes) as work:
                written = [len(each.tokens) for each in work.run().values()]
            found |= {
                f"{name}_max_new_tokens": limit,
                f"{name}_mean_tokens": round(statistics.fmean(written), 3),
                f"{name}_coverage_share": share_within(lengths, limit),
            }
        return found

    return facts


def share_within(lengths: Sequence[int], limit: int) -> float:
    return sum(length <= limit for length in lengths) / len(lengths)


def padding_facts(evaluator: Evaluator, before: Changes, after: Changes) -> Facts:
    """The share of the prompt slots of all rows that hold no token."""

    def facts(lab: Lab) -> Mapping[str, Fact]:
        generator = evaluator.generator(lab, settings_of(lab, {}))
        rows = evaluator.rows(lab)
        lengths = {at: len(generator.encode(each).input_ids) for at, each in enumerate(rows)}
        return {
            f"{name}_padding_share": _padding(lengths, settings_of(lab, changes))
            for name, changes in (("before", before), ("after", after))
        }

    return facts


def _padding(lengths: Mapping[int, int], settings: Settings) -> float:
    batches = split(in_order(lengths, settings), settings.batch_size)
    slots = sum(len(each) * max(lengths[at] for at in each) for each in batches)
    return 1 - sum(lengths.values()) / slots


def config_facts(lab: Lab) -> Mapping[str, Fact]:
    """What one construction costs: far less than the noise of a pass, so timed by itself."""
    decoding = settings_of(lab, {}).decoding
    generation_config((0,), 0, decoding)  # imports what it needs
    began = time.perf_counter()
    for _ in range(CONFIGS):
        generation_config.__wrapped__((0,), 0, decoding)
    return {"one_construction_microseconds": (time.perf_counter() - began) / CONFIGS * 1e6}


# --- why a change cannot act here ---


def copy_obstacle(lab: Lab) -> str:
    if lab.device.type != "cpu":
        return ""
    return "not applicable on the CPU: batches are not copied to another device"


def compile_obstacle(lab: Lab) -> str:
    """A static cache is there to be compiled, which transformers does on accelerators only."""
    if lab.device.type != "cpu":
        return ""
    return (
        "on the CPU transformers never compiles generation, and compiling the model for each shape "
        "of its batches takes minutes; try it on an accelerator"
    )


def workers_here() -> int:
    """More loader processes than cores would only take turns."""
    return min(WORKERS, len(os.sched_getaffinity(0)))


def processes_of(lab: Lab) -> int:
    """One for each device, as many as the guide has at most; a CPU's cores are shared by two."""
    if lab.device.type == "cpu":
        return FEWEST_PROCESSES
    return max(FEWEST_PROCESSES, min(MOST_PROCESSES, _device_count(lab)))


def _device_count(lab: Lab) -> int:
    found: int = torch.get_device_module(lab.device).device_count()
    return found


def processes_obstacle(lab: Lab) -> str:
    """One core or one device cannot be shared out."""
    if lab.device.type == "cpu":
        found, what = len(os.sched_getaffinity(0)), "core(s)"
    else:
        found, what = _device_count(lab), "device(s)"
    processes = processes_of(lab)
    if found >= processes:
        return ""
    return f"{processes} processes need as many {what}, and there is {found}"


def bfloat16_obstacle(lab: Lab) -> str:
    if lab.device.type == "cuda" and not torch.cuda.is_bf16_supported():
        return "this GPU has no bfloat16"
    return ""
