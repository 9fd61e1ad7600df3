"""Pre-trains a masked language model on shards of token numbers, with the Trainer.

    python slow.py --layers 4 --output-dir runs/first

The shards are compressed archives, as the tokenising job wrote them.
"""

import argparse
import logging
import tempfile
from pathlib import Path

import torch
import transformers
from shards import MaskTokens, ShardedTokens, write_shards
from transformers import BertConfig, BertForMaskedLM, Trainer, TrainerCallback, TrainingArguments

log = logging.getLogger("pretrain")


class PrintLoss(TrainerCallback):
    """One line per step on standard output."""

    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs and "loss" in logs:
            print(f"step {state.global_step} loss {float(logs['loss']):.4f}")


def build_model(args):
    config = BertConfig(
        vocab_size=args.vocabulary,
        hidden_size=args.hidden,
        num_hidden_layers=args.layers,
        num_attention_heads=4,
        intermediate_size=4 * args.hidden,
        max_position_embeddings=args.length,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    model = BertForMaskedLM(config)
    log.info("%.1f M parameters", model.num_parameters() / 1e6)
    return model


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--vocabulary", type=int, default=2000)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=24)
    parser.add_argument("--lr", type=float, default=5e-4)
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--output-dir", default=None)
    return parser.parse_args()


def main():
    args = parse_args()
    logging.basicConfig(level=logging.INFO)
    transformers.set_seed(args.seed)
    torch.set_num_threads(2)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(args.output_dir or scratch)
        folder.mkdir(parents=True, exist_ok=True)
        write_shards(folder, args.vocabulary, args.length, args.seed)
        dataset = ShardedTokens(folder)
        log.info("%d rows", len(dataset))
        arguments = TrainingArguments(
            output_dir=str(folder / "checkpoints"),
            max_steps=args.steps,
            per_device_train_batch_size=args.batch_size,
            learning_rate=args.lr,
            warmup_steps=20,
            weight_decay=0.01,
            optim="adamw_torch_fused",
            logging_steps=1,
            logging_strategy="steps",
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            dataloader_num_workers=0,
            use_cpu=True,
            seed=args.seed,
        )
        trainer = Trainer(
            model=build_model(args),
            args=arguments,
            train_dataset=dataset,
            data_collator=MaskTokens(args.vocabulary, args.seed),
            callbacks=[PrintLoss()],
        )
        trainer.remove_callback(transformers.trainer_callback.PrinterCallback)
        trainer.train()


if __name__ == "__main__":
    main()
