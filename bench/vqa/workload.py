"""What does it cost to ask about pictures? InternVL on photographs of several formats."""

from __future__ import annotations

from bench.data import vocabulary
from bench.generation.job import Family, make_workload
from bench.vqa.generator import build_model, open_reader
from bench.vqa.questions import WORDS, open_questions
from diagnose.workload import Size

SIZES = {
    # InternVL3-1B with the batch and the tiles of the report about evaluating MolmoE-1B.
    "seed": Size(
        batch_size=32,
        sequence_length=32,
        shape={
            "max_crops": 12,
            "image": 448,
            "patch": 14,
            "vision_layers": 24,
            "vision_hidden": 1024,
            "vision_heads": 16,
            "vision_ffn": 4096,
            "layers": 24,
            "hidden": 896,
            "heads": 14,
            "kv_heads": 2,
            "ffn": 4864,
            "vocab": 151674,
            "tied": 0,
            "rows": 64,
            "new_tokens": 16,
        },
    ),
    # Tenths of a second for a batch on two CPU cores.
    "small": Size(
        batch_size=4,
        sequence_length=16,
        shape={
            "max_crops": 4,
            "image": 112,
            "patch": 14,
            "vision_layers": 2,
            "vision_hidden": 64,
            "vision_heads": 2,
            "vision_ffn": 256,
            "layers": 2,
            "hidden": 128,
            "heads": 4,
            "kv_heads": 2,
            "ffn": 344,
            "vocab": vocabulary.COMMON_SIZE + len(WORDS),
            "tied": 0,
            "rows": 64,
            "new_tokens": 16,
        },
    ),
    # For tests.
    "tiny": Size(
        batch_size=2,
        sequence_length=16,
        shape={
            "max_crops": 2,
            "image": 56,
            "patch": 14,
            "vision_layers": 1,
            "vision_hidden": 32,
            "vision_heads": 2,
            "vision_ffn": 64,
            "layers": 2,
            "hidden": 32,
            "heads": 2,
            "kv_heads": 1,
            "ffn": 64,
            "vocab": vocabulary.COMMON_SIZE + len(WORDS),
            "tied": 0,
            "rows": 16,
            "new_tokens": 8,
        },
    ),
}

FAMILY = Family(
    name="vqa",
    description="hand-written questions on four photographs of installed packages in five formats",
    sizes=SIZES,
    build_model=build_model,
    open_reader=open_reader,
    open_questions=open_questions,
)

WORKLOAD = make_workload(FAMILY)
