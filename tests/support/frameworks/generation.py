"""Hugging Face's generate(), and nothing else."""

import kept
import torch
from transformers import GPT2Config, GPT2LMHeadModel

kept.seed()
model = GPT2LMHeadModel(
    GPT2Config(vocab_size=64, n_positions=32, n_embd=16, n_layer=1, n_head=2)
).eval()
lengths = []
for _ in range(60):
    prompt = torch.randint(1, 64, (2, 4))
    found = model.generate(prompt, max_new_tokens=6, do_sample=True, eos_token_id=0, pad_token_id=0)
    lengths.append(found.sum())
kept.leave(lengths, model)
