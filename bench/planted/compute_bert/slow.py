"""Trains a RoBERTa to fill in missing words: wide layers, and little else to wait for."""

import argparse
from dataclasses import dataclass

import torch
from torch import nn
from transformers import RobertaConfig, RobertaForMaskedLM

MASK, PAD = 4, 1


@dataclass
class Config:
    vocabulary: int = 3000
    length: int = 32
    width: int = 320
    layers: int = 3
    batch_size: int = 8
    lr: float = 3e-4


def build_model(config):
    return RobertaForMaskedLM(
        RobertaConfig(
            vocab_size=config.vocabulary,
            hidden_size=config.width,
            num_hidden_layers=config.layers,
            num_attention_heads=4,
            intermediate_size=4 * config.width,
            max_position_embeddings=config.length + 2,
            pad_token_id=PAD,
            hidden_dropout_prob=0.1,
        )
    )


def batches(config):
    """Words that repeat after eight places, a sixth of them hidden."""
    generator = torch.Generator().manual_seed(0)
    shape = config.batch_size, 8
    while True:
        motif = torch.randint(5, config.vocabulary, shape, generator=generator)
        words = motif.repeat(1, config.length // 8)
        hidden = torch.rand(words.shape, generator=generator) < 0.15
        hidden[:, 0] = True
        yield words.masked_fill(hidden, MASK), words.masked_fill(~hidden, -100)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--width", type=int, default=Config.width)
    args = parser.parse_args()
    config = Config(width=args.width)
    torch.manual_seed(0)
    torch.set_num_threads(2)
    model = build_model(config)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr, fused=True)
    for step, (words, labels) in zip(range(args.steps), batches(config), strict=False):
        loss = model(input_ids=words, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        print(f"step {step} loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
