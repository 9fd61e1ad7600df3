"""Trains a small GPT-2 on verses, two at a time.

python slow.py --layers 4
"""

import argparse
import logging
from dataclasses import dataclass

import torch
from transformers import GPT2Config, GPT2LMHeadModel
from verses import Verses

log = logging.getLogger("verses")


@dataclass
class Config:
    vocabulary: int = 256
    length: int = 24
    width: int = 64
    layers: int = 6
    heads: int = 2
    batch_size: int = 2  # culprit: batch
    lr: float = 5e-4
    seed: int = 30


def build_model(config):
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=config.vocabulary,
            n_positions=config.length,
            n_embd=config.width,
            n_layer=config.layers,
            n_head=config.heads,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=0,
            eos_token_id=0,
        )
    )


def train(config, steps):
    model = build_model(config)
    verses = Verses(config.vocabulary, config.length, config.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr, fused=True)
    log.info("%d parameters", model.num_parameters())
    for step in range(steps):
        batch = verses.next(config.batch_size)
        loss = model(input_ids=batch, labels=batch).loss  # cost: batch
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        print(f"step {step} loss {loss.item():.6f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--layers", type=int, default=Config.layers)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    config = Config(layers=args.layers)
    torch.manual_seed(config.seed)
    torch.set_num_threads(2)
    train(config, args.steps)


if __name__ == "__main__":
    main()
