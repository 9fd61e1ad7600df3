"""What does it cost to evaluate a language model? Qwen2 that corrects real sentences."""

from __future__ import annotations

from bench.data import vocabulary
from bench.generation.job import Family, make_workload
from bench.textgen.generator import build_model, open_reader
from bench.textgen.questions import open_questions
from diagnose.workload import Size

SIZES = {
    # Qwen2.5-0.5B, which the report about batched evaluation began with, at its batch size.
    "seed": Size(
        batch_size=4,
        sequence_length=64,
        shape={
            "layers": 24,
            "hidden": 896,
            "heads": 14,
            "kv_heads": 2,
            "ffn": 4864,
            "vocab": 151936,
            "tied": 1,
            "rows": 1024,
            "new_tokens": 16,
        },
    ),
    # A tenth of a second for 16 tokens on two CPU cores: most of it is spent once per layer and
    # token, and with two layers the whole catalogue is tried in less than five minutes.
    "small": Size(
        batch_size=4,
        sequence_length=64,
        shape={
            "layers": 2,
            "hidden": 256,
            "heads": 4,
            "kv_heads": 2,
            "ffn": 688,
            "vocab": vocabulary.SIZE,
            "tied": 0,
            "rows": 256,
            "new_tokens": 16,
        },
    ),
    # For tests.
    "tiny": Size(
        batch_size=2,
        sequence_length=32,
        shape={
            "layers": 2,
            "hidden": 32,
            "heads": 2,
            "kv_heads": 1,
            "ffn": 64,
            "vocab": vocabulary.COMMON_SIZE,
            "tied": 0,
            "rows": 32,
            "new_tokens": 8,
        },
    ),
}

FAMILY = Family(
    name="textgen",
    description="spelling errors in sentences of an installed package, to be corrected",
    sizes=SIZES,
    build_model=build_model,
    open_reader=open_reader,
    open_questions=open_questions,
)

WORKLOAD = make_workload(FAMILY)
