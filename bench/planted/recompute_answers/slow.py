"""Answers questions with a small Llama, and scores how many of the words were wanted.

python slow.py --max-new-tokens 32 --batch-size 8
"""

import argparse
import json
import logging
from dataclasses import asdict, dataclass, field

import torch
from dialogues import Dialogues, overlap
from torch.utils.data import DataLoader
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM
from transformers.utils import logging as transformers_logging

log = logging.getLogger("answers")


@dataclass
class ModelSizes:
    vocabulary: int = 1000
    width: int = 192
    layers: int = 3
    heads: int = 4
    inner: int = 512


@dataclass
class Config:
    batch_size: int = 6
    max_new_tokens: int = 10
    prompt_tokens: int = 16
    repetition_penalty: float = 1.1
    seed: int = 2
    sizes: ModelSizes = field(default_factory=ModelSizes)


def build_model(sizes):
    config = LlamaConfig(
        vocab_size=sizes.vocabulary,
        hidden_size=sizes.width,
        intermediate_size=sizes.inner,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        max_position_embeddings=256,
        bos_token_id=1,
        eos_token_id=None,
        pad_token_id=0,
        use_cache=False,  # culprit: recompute
    )
    return LlamaForCausalLM(config).eval()


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--batch-size", type=int, default=Config.batch_size)
    parser.add_argument("--max-new-tokens", type=int, default=Config.max_new_tokens)
    return parser.parse_args()


@torch.inference_mode()
def answer(model, batch, generation):
    """The new tokens of each dialogue."""
    made = model.generate(  # cost: recompute
        input_ids=batch["input_ids"],
        attention_mask=batch["attention_mask"],
        generation_config=generation,
    )
    return made[:, batch["input_ids"].shape[1] :]


def main():
    args = parse_args()
    logging.basicConfig(level=logging.INFO)
    transformers_logging.set_verbosity_error()
    config = Config(batch_size=args.batch_size, max_new_tokens=args.max_new_tokens)
    torch.manual_seed(config.seed)
    torch.set_num_threads(2)
    log.info("%s", json.dumps(asdict(config)))
    model = build_model(config.sizes)
    generation = GenerationConfig(
        max_new_tokens=config.max_new_tokens,
        min_new_tokens=config.max_new_tokens,
        do_sample=False,
        repetition_penalty=config.repetition_penalty,
        pad_token_id=0,
        use_cache=model.config.use_cache,
    )
    dialogues = Dialogues(10_000_000, config.prompt_tokens, config.sizes.vocabulary)
    loader = DataLoader(dialogues, batch_size=config.batch_size)
    total = 0.0
    for step, batch in zip(range(args.steps), loader, strict=False):
        made = answer(model, batch, generation)
        total += overlap(made, batch["wanted"])
        mark = made.float().mean().item()
        print(f"step {step} mean token {mark:.4f} overlap {total / (step + 1):.4f}")


if __name__ == "__main__":
    main()
