"""Fine-tunes a small DistilBERT to route questions to departments, with the Trainer.

    python slow.py --eval-steps 50 --departments 24

What the validation set says is wanted often while the learning rate is being looked for.
"""

import argparse
import logging
import tempfile
from dataclasses import dataclass

import numpy as np
import torch
import transformers
from questions import Questions
from transformers import (
    DistilBertConfig,
    DistilBertForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

log = logging.getLogger("routing")


@dataclass
class Sizes:
    vocabulary: int = 1500
    length: int = 40
    width: int = 128
    layers: int = 2
    heads: int = 4


class StepPrinter(TrainerCallback):
    """One line per training step; the latest validation beside it."""

    def __init__(self):
        self.accuracy = float("nan")

    def on_evaluate(self, args, state, control, metrics=None, **kwargs):
        self.accuracy = metrics["eval_accuracy"]

    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs and "loss" in logs:
            loss = float(logs["loss"])
            print(f"step {state.global_step} loss {loss:.4f} accuracy {self.accuracy:.3f}")


def accuracy_of(prediction):
    guessed = np.argmax(prediction.predictions, axis=-1)
    return {"accuracy": float((guessed == prediction.label_ids).mean())}


def worst_department(prediction):
    """The department whose questions go astray most often, for the log."""
    guessed = np.argmax(prediction.predictions, axis=-1)
    labels = prediction.label_ids
    rates = [(guessed[labels == each] == each).mean() for each in np.unique(labels)]
    return int(np.argmin(rates)), float(min(rates))


def build_model(sizes, departments):
    config = DistilBertConfig(
        vocab_size=sizes.vocabulary,
        max_position_embeddings=sizes.length,
        dim=sizes.width,
        hidden_dim=4 * sizes.width,
        n_layers=sizes.layers,
        n_heads=sizes.heads,
        dropout=0.0,
        attention_dropout=0.0,
        seq_classif_dropout=0.0,
        num_labels=departments,
    )
    return DistilBertForSequenceClassification(config)


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--departments", type=int, default=16)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--eval-steps", type=int, default=5)  # culprit: evaluation
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--seed", type=int, default=8)
    return parser.parse_args()


def main():
    args = parse_args()
    logging.basicConfig(level=logging.WARNING)
    transformers.set_seed(args.seed)
    torch.set_num_threads(2)
    sizes = Sizes()
    training = Questions(6000, sizes.length, sizes.vocabulary, args.departments, seed=1)
    validation = Questions(256, sizes.length, sizes.vocabulary, args.departments, seed=2)
    log.info("%d questions to learn from, %d to check", len(training), len(validation))
    with tempfile.TemporaryDirectory() as scratch:
        trainer = Trainer(
            model=build_model(sizes, args.departments),
            args=TrainingArguments(
                output_dir=scratch,
                max_steps=args.steps,
                per_device_train_batch_size=args.batch_size,
                per_device_eval_batch_size=64,
                learning_rate=args.lr,
                optim="adamw_torch_fused",
                logging_steps=1,
                eval_strategy="steps",
                eval_steps=args.eval_steps,
                save_strategy="no",
                report_to=[],
                disable_tqdm=True,
                use_cpu=True,
                seed=args.seed,
            ),
            train_dataset=training,
            eval_dataset=validation,
            compute_metrics=accuracy_of,
            callbacks=[StepPrinter()],
        )
        trainer.remove_callback(transformers.trainer_callback.PrinterCallback)
        trainer.train()  # cost: evaluation
        department, rate = worst_department(trainer.predict(validation))
        log.info("department %d gets %.0f %% of its questions", department, 100 * rate)


if __name__ == "__main__":
    main()
