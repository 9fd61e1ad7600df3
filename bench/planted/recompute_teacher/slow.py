"""Distils a BERT of six layers into one of two on a small set of legal clauses.

python slow.py --temperature 3 --alpha 0.7
"""

import argparse
import logging
from dataclasses import dataclass

import torch
from clauses import Clauses
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification

log = logging.getLogger("distil")


@dataclass
class Config:
    vocabulary: int = 1200
    kinds: int = 20
    length: int = 32
    clauses: int = 384
    batch_size: int = 32
    teacher_width: int = 160
    teacher_layers: int = 5
    student_width: int = 128
    student_layers: int = 3
    temperature: float = 2.0
    alpha: float = 0.5
    lr: float = 5e-4
    seed: int = 12


def build(config, width, layers):
    return BertForSequenceClassification(
        BertConfig(
            vocab_size=config.vocabulary,
            hidden_size=width,
            num_hidden_layers=layers,
            num_attention_heads=4,
            intermediate_size=4 * width,
            max_position_embeddings=config.length,
            num_labels=config.kinds,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
    )


class Distillation:
    """The student learns from the labels and from the teacher's doubts."""

    def __init__(self, config):
        self.config = config
        self.teacher = build(config, config.teacher_width, config.teacher_layers).eval()
        self.student = build(config, config.student_width, config.student_layers)
        self.teacher.requires_grad_(False)
        self.optimizer = torch.optim.AdamW(self.student.parameters(), lr=config.lr, fused=True)

    @torch.no_grad()
    def ask_teacher(self, tokens):
        return self.teacher(input_ids=tokens).logits / self.config.temperature  # cost: recompute

    def step(self, numbers, tokens, kinds):
        wanted = self.ask_teacher(tokens)  # culprit: recompute
        logits = self.student(input_ids=tokens).logits
        soft = F.kl_div(
            F.log_softmax(logits / self.config.temperature, dim=-1),
            F.softmax(wanted, dim=-1),
            reduction="batchmean",
        )
        hard = F.cross_entropy(logits, kinds)
        scale = self.config.temperature**2
        loss = self.config.alpha * scale * soft + (1 - self.config.alpha) * hard
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.student.parameters(), 1.0)
        self.optimizer.step()
        return loss.item()


@torch.no_grad()
def agreement(distillation, clauses):
    """The share of clauses of which the student thinks as the teacher does."""
    distillation.student.eval()
    same = [
        distillation.student(input_ids=tokens).logits.argmax(1)
        == distillation.ask_teacher(tokens).argmax(1)
        for tokens in clauses.tokens.split(64)
    ]
    distillation.student.train()
    return torch.cat(same).float().mean().item()


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--temperature", type=float, default=Config.temperature)
    parser.add_argument("--alpha", type=float, default=Config.alpha)
    return parser.parse_args()


def main():
    args = parse_args()
    logging.basicConfig(level=logging.INFO)
    config = Config(temperature=args.temperature, alpha=args.alpha)
    torch.manual_seed(config.seed)
    torch.set_num_threads(2)
    clauses = Clauses(config)
    order = torch.Generator().manual_seed(config.seed)
    loader = DataLoader(
        clauses, batch_size=config.batch_size, shuffle=True, drop_last=True, generator=order
    )
    distillation = Distillation(config)
    log.info("%d clauses, %d batches an epoch", len(clauses), len(loader))
    for name in ("teacher", "student"):
        model = getattr(distillation, name)
        log.info("%s: %.1f M parameters", name, model.num_parameters() / 1e6)
    step = 0
    while step < args.steps:
        for numbers, tokens, kinds in loader:
            loss = distillation.step(numbers, tokens, kinds)
            print(f"step {step} loss {loss:.6f}")
            step += 1
            if step == args.steps:
                break
    log.info("student and teacher agree on %.0f %%", 100 * agreement(distillation, clauses))


if __name__ == "__main__":
    main()
