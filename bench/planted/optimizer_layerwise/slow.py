"""Fine-tunes a narrow, deep ELECTRA on tagging, each layer with its own learning rate.

python slow.py --decay 0.9
"""

import argparse
import logging
from dataclasses import dataclass

import torch
from schedule import layerwise_groups, warm_up
from torch import nn
from transformers import ElectraConfig, ElectraForTokenClassification

log = logging.getLogger("tagging")


@dataclass
class Config:
    vocabulary: int = 800
    tags: int = 9
    length: int = 24
    width: int = 64
    depth: int = 12
    batch_size: int = 8
    lr: float = 1e-3
    decay: float = 0.85
    weight_decay: float = 0.01
    seed: int = 21


def build_model(config):
    return ElectraForTokenClassification(
        ElectraConfig(
            vocab_size=config.vocabulary,
            embedding_size=config.width,
            hidden_size=config.width,
            num_hidden_layers=config.depth,
            num_attention_heads=2,
            intermediate_size=2 * config.width,
            max_position_embeddings=config.length,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            classifier_dropout=0.0,
            num_labels=config.tags,
        )
    )


def sentences(config):
    """A tag follows from a word and the one before it."""
    generator = torch.Generator().manual_seed(config.seed)
    shape = config.batch_size, config.length
    while True:
        words = torch.randint(1, config.vocabulary, shape, generator=generator)
        yield words, (words + words.roll(1, dims=1)) % config.tags


def train(config, steps):
    model = build_model(config)
    model.train()
    groups = layerwise_groups(model, config)
    log.info("%d groups of parameters", len(groups))
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.98))  # culprit: optimizer
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, warm_up)
    for step, (words, tags) in zip(range(steps), sentences(config), strict=False):
        loss = model(input_ids=words, labels=tags).loss
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()  # cost: optimizer
        scheduler.step()
        print(f"step {step} loss {loss.item():.6f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--decay", type=float, default=Config.decay)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    config = Config(decay=args.decay)
    torch.manual_seed(config.seed)
    torch.set_num_threads(2)
    train(config, args.steps)


if __name__ == "__main__":
    main()
