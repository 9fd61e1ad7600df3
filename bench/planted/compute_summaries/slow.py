"""Trains a small T5 to shorten reports, with the Trainer; a loader process pads the batches.

python slow.py --layers 3 --label-smoothing 0.05
"""

import argparse
import tempfile
from dataclasses import dataclass

import torch
import transformers
from transformers import (
    T5Config,
    T5ForConditionalGeneration,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from reports import PadReports, Reports


@dataclass
class Sizes:
    vocabulary: int = 1000
    width: int = 128
    inner: int = 384
    layers: int = 2
    heads: int = 4
    longest_report: int = 48
    longest_summary: int = 12


class OneLine(TrainerCallback):
    """One line per step, and the schedule beside it."""

    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs and "loss" in logs:
            rate = float(logs["learning_rate"])
            print(f"step {state.global_step} loss {float(logs['loss']):.4f} rate {rate:.6f}")


def build_model(sizes):
    return T5ForConditionalGeneration(
        T5Config(
            vocab_size=sizes.vocabulary,
            d_model=sizes.width,
            d_kv=sizes.width // sizes.heads,
            d_ff=sizes.inner,
            num_layers=sizes.layers,
            num_heads=sizes.heads,
            dropout_rate=0.0,
            decoder_start_token_id=0,
            pad_token_id=0,
            eos_token_id=1,
        )
    )


def freeze(model, names):
    """Keep some parts as they are, by the beginnings of their names."""
    for name, parameter in model.named_parameters():
        if any(name.startswith(each) for each in names):
            parameter.requires_grad_(False)
    return model


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--layers", type=int, default=Sizes.layers)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--label-smoothing", type=float, default=0.0)
    parser.add_argument("--freeze", nargs="*", default=[], metavar="NAME")
    return parser.parse_args()


def main():
    args = parse_args()
    transformers.set_seed(1)
    torch.set_num_threads(1)
    sizes = Sizes(layers=args.layers)
    with tempfile.TemporaryDirectory() as scratch:
        trainer = Trainer(
            model=freeze(build_model(sizes), args.freeze),
            args=TrainingArguments(
                output_dir=scratch,
                max_steps=args.steps,
                per_device_train_batch_size=args.batch_size,
                learning_rate=args.lr,
                label_smoothing_factor=args.label_smoothing,
                lr_scheduler_type="constant_with_warmup",
                warmup_steps=50,
                optim="adamw_torch_fused",
                logging_steps=1,
                save_strategy="no",
                report_to=[],
                remove_unused_columns=False,
                disable_tqdm=True,
                dataloader_num_workers=1,
                dataloader_persistent_workers=True,
                dataloader_drop_last=True,
                use_cpu=True,
            ),
            train_dataset=Reports(4000, sizes),
            data_collator=PadReports(),
            callbacks=[OneLine()],
        )
        trainer.remove_callback(transformers.trainer_callback.PrinterCallback)
        trainer.train()


if __name__ == "__main__":
    main()
