"""Is every kind of script diagnosed, however it trains, evaluates or is put together?"""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from diagnose.analyze.script.prefix import has_growing_prefix
from diagnose.records.script import Options
from tests.support.script_runs import line_of, run_script, write_script

FAST = Options(steps=80, seconds=20.0, warmup=2)
HEAD = """
import torch
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
def work():
    return sum(number * number for number in range(120_000))  # here
"""

TRAINING = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    optimizer.zero_grad()
    model(torch.randn(8, 16)).square().mean().backward()
    optimizer.step()
    work()
"""
# The planted work is most of a step, so that no noise can hide it.
KINDS = {
    "accumulation in a class": """
        class Trainer:
            def __init__(self):
                self.optimizer = torch.optim.AdamW(model.parameters())
                data = torch.utils.data.TensorDataset(torch.randn(64, 16))
                self.loader = torch.utils.data.DataLoader(data, batch_size=8)
            def fit(self):
                while True:
                    for number, (x,) in enumerate(self.loader, start=1):
                        self.loss(x).backward()
                        if number % 2 == 0:
                            self.optimizer.step()
                            self.optimizer.zero_grad()
            def loss(self, x):
                work()
                return model(x).square().mean() / 2
        Trainer().fit()
        """,
    "several optimisers and a generator": """
        judge = torch.nn.Linear(4, 1)
        first = torch.optim.Adam(model.parameters())
        second = torch.optim.SGD(judge.parameters(), lr=0.1)
        def noise():
            while True:
                yield torch.randn(8, 16)
        for x in noise():
            for optimizer in (second, first):
                optimizer.zero_grad()
                judge(model(x)).mean().backward()
                optimizer.step()
            work()
        """,
    "compiled with eager": 'model = torch.compile(model, backend="eager")' + TRAINING,
    "compiled with aot_eager": 'model.compile(backend="aot_eager")' + TRAINING,
    # Its calls are steps until the optimizer comes, and then everything begins again.
    "training after an evaluation": "for _ in range(35): model(torch.randn(8, 16))" + TRAINING,
    "evaluation without gradients": """
        right = 0
        with torch.no_grad():
            while True:
                right += model(torch.randn(8, 16)).argmax(1).sum().item()
                work()
        """,
    # Both calls are one step, and so is what comes after them.
    "evaluation of pairs": """
        with torch.no_grad():
            while True:
                near = model(torch.randn(8, 16)) - model(torch.randn(8, 16))
                near.norm().item()
                work()
        """,
    "evaluation in inference mode": """
        @torch.inference_mode()
        def evaluate():
            while True:
                model(torch.randn(8, 16)).argmax(1).sum().item()
                work()
        evaluate()
        """,
}


def test_text_made_without_a_cache_is_given_to_the_model_from_its_beginning(tmp_path: Path) -> None:
    code = """
    class Writer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.words = torch.nn.Embedding(9, 64)
        def forward(self, input_ids, attention_mask=None):
            states = self.words(input_ids)
            return (states @ states.mT).softmax(2) @ states @ self.words.weight.T
        @torch.no_grad()
        def generate(self, text):
            for _ in range(9):
                seen = self(attention_mask=torch.ones(2, 99), input_ids=text)
                text = torch.cat([text, seen[:, -1:].argmax(2)], 1)
            return text
    writer = Writer()
    while True:
        writer.generate(torch.ones(2, 5, dtype=torch.long))
    """
    _, record, _ = run_script(write_script(tmp_path, HEAD + textwrap.dedent(code)), FAST)
    assert record.boundary == "generate call"
    lengths = [length for length, _ in record.prefixes]
    start = lengths.index(5)
    assert lengths[start : start + 18] == [*range(5, 14), *range(5, 14)]
    assert has_growing_prefix(record)


@pytest.mark.alone
@pytest.mark.parametrize("kind", KINDS)
def test_the_planted_line_is_seen(tmp_path: Path, kind: str) -> None:
    script = write_script(tmp_path, HEAD + textwrap.dedent(KINDS[kind]))
    end, record, diagnosis = run_script(script, FAST)
    assert end.stopped
    assert not record.missing
    evaluates = kind.startswith("evaluation")
    assert record.boundary == ("model call" if evaluates else "optimizer step")
    # The sampled steps are other ones, and all are short: noise moves each of them.
    shortest, longest = min(record.step_seconds), max(record.step_seconds)
    assert 0.6 * shortest < sum(record.phases.values()) < 1.7 * longest
    most = max(record.suspects, key=lambda each: each.seconds)
    assert (most.phase, most.site.line) == ("host", line_of(script, "# here"))
    # A busy machine may hide what was tried behind its noise, but not what was seen.
    named = {each.cause for each in diagnosis.findings}
    named |= {each.cause for each in diagnosis.excluded}
    named |= {each.cause for each in diagnosis.cannot_tell}
    assert "host" in named
    assert not [each for each in record.changes if each.failed]
    assert record.mapped is not kind.startswith("compiled")
    calls = {"evaluation without gradients": 1, "evaluation of pairs": 2}.get(kind)
    if calls is not None:
        assert record.flops == calls * 2 * 8 * (16 * 16 + 16 * 4)
