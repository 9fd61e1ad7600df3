"""Writes replies with a Qwen2 from its configuration, many prompts at once, with a cache."""

import argparse
import logging
from dataclasses import dataclass

import torch
from transformers import GenerationConfig, Qwen2Config, Qwen2ForCausalLM
from transformers.utils import logging as transformers_logging

log = logging.getLogger("replies")


@dataclass
class Config:
    vocabulary: int = 2000
    width: int = 384
    layers: int = 3
    prompts: int = 24
    length: int = 16
    new_tokens: int = 8


def build_model(config):
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=config.vocabulary,
            hidden_size=config.width,
            intermediate_size=4 * config.width,
            num_hidden_layers=config.layers,
            num_attention_heads=6,
            num_key_value_heads=2,
            max_position_embeddings=128,
            bos_token_id=1,
            eos_token_id=None,
            pad_token_id=0,
        )
    ).eval()


def prompts(config):
    generator = torch.Generator().manual_seed(0)
    shape = config.prompts, config.length
    while True:
        yield torch.randint(3, config.vocabulary, shape, generator=generator)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--new-tokens", type=int, default=Config.new_tokens)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    transformers_logging.set_verbosity_error()
    config = Config(new_tokens=args.new_tokens)
    torch.manual_seed(0)
    torch.set_num_threads(2)
    model = build_model(config)
    log.info("%.1f M parameters", model.num_parameters() / 1e6)
    generation = GenerationConfig(
        max_new_tokens=config.new_tokens,
        min_new_tokens=config.new_tokens,
        do_sample=False,
        pad_token_id=0,
        use_cache=True,
    )
    for step, batch in zip(range(args.steps), prompts(config), strict=False):
        with torch.inference_mode():
            made = model.generate(
                input_ids=batch,
                attention_mask=torch.ones_like(batch),
                generation_config=generation,
            )
        replies = made[:, config.length :]
        different = len(set(map(tuple, replies.tolist()))) / config.prompts
        print(f"step {step} mean {replies.float().mean().item():.4f} different {different:.2f}")


if __name__ == "__main__":
    main()
