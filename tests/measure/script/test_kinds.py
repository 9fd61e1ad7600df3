"""Is every kind of script diagnosed, however it trains, evaluates or is put together?"""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from diagnose.records.script import Options
from tests.support.script_runs import line_of, run_script, write_script

FAST = Options(steps=30, seconds=1.0, warmup=2)
HEAD = """
import torch
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
def work():
    return sum(number * number for number in range(40_000))  # here
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
    "evaluation in inference mode": """
        @torch.inference_mode()
        def evaluate():
            while True:
                model(torch.randn(8, 16)).argmax(1).sum().item()
                work()
        evaluate()
        """,
}


@pytest.mark.alone
@pytest.mark.parametrize("kind", KINDS)
def test_the_planted_line_is_seen(tmp_path: Path, kind: str) -> None:
    script = write_script(tmp_path, HEAD + textwrap.dedent(KINDS[kind]))
    end, record, diagnosis = run_script(script, FAST)
    assert end.stopped
    assert not record.missing
    evaluates = kind.startswith("evaluation")
    assert record.boundary == ("model call" if evaluates else "optimizer step")
    mean = sum(record.step_seconds) / len(record.step_seconds)
    assert sum(record.phases.values()) == pytest.approx(mean, rel=0.25)
    most = max(record.suspects, key=lambda each: each.seconds)
    assert (most.phase, most.site.line) == ("host", line_of(script, "# here"))
    # A busy machine may hide what was tried behind its noise, but not what was seen.
    named = {each.cause for each in diagnosis.findings}
    named |= {each.cause for each in diagnosis.excluded}
    named |= {each.cause for each in diagnosis.cannot_tell}
    assert "host" in named
    assert not [each for each in record.changes if each.failed]
    assert record.mapped is not kind.startswith("compiled")
    if kind == "evaluation without gradients":
        assert record.flops == 2 * 8 * (16 * 16 + 16 * 4)


@pytest.mark.alone
def test_the_trainer_of_transformers(tmp_path: Path) -> None:
    code = """
    import torch
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments
    torch.set_num_threads(1)
    class Rows(torch.utils.data.Dataset):
        def __len__(self):
            return 10_000
        def __getitem__(self, index):
            sum(number * number for number in range(40_000))  # here
            return {"input_ids": torch.arange(8) + index % 90, "labels": torch.tensor(index % 2)}
    model = BertForSequenceClassification(BertConfig(
        vocab_size=100, hidden_size=8, num_hidden_layers=1, num_attention_heads=1,
        intermediate_size=8))
    arguments = TrainingArguments(
        output_dir=OUTPUT, max_steps=10_000, per_device_train_batch_size=4, report_to=[],
        disable_tqdm=True, save_strategy="no", use_cpu=True)
    Trainer(model=model, args=arguments, train_dataset=Rows()).train()
    """
    text = textwrap.dedent(code).replace("OUTPUT", repr(str(tmp_path)))
    script = write_script(tmp_path, text)
    end, record, _ = run_script(script, FAST)
    assert end.stopped
    assert not record.missing
    assert record.boundary == "optimizer step"
    assert (record.loaders[0].batch_size, record.loaders[0].workers) == (4, 0)
    waiting = next(each for each in record.suspects if each.phase == "input")
    assert waiting.site.line == line_of(script, "# here")
    assert {"plain", "replayed batches"} <= {each.variant for each in record.windows}
    assert not [each for each in record.changes if each.failed]
