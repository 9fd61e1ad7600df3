"""Hugging Face's Trainer, with an evaluation now and then. `slow` plants a cause."""

import sys
import time

import kept
import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

PLANTED = sys.argv[1] if sys.argv[1:] else ""


class Rows(torch.utils.data.Dataset):
    def __init__(self, count, slow=False):
        self.count, self.slow = count, slow

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if self.slow:
            time.sleep(0.004)  # slow item
        return {"input_ids": torch.arange(8) + index % 90, "labels": torch.tensor(index % 2)}


def main():
    kept.seed()
    config = BertConfig(
        vocab_size=100,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
    )
    model = BertForSequenceClassification(config)
    arguments = TrainingArguments(
        output_dir="out",
        max_steps=100_000 if PLANTED else 70,
        per_device_train_batch_size=4,
        per_device_eval_batch_size=4,
        eval_strategy="steps",
        eval_steps=2 if PLANTED == "evaluation" else 25,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        seed=0,
    )
    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=Rows(400, PLANTED == "input"),
        eval_dataset=Rows(120 if PLANTED == "evaluation" else 16),
    )
    trainer.train()  # the trainer
    losses = [each["loss"] for each in trainer.state.log_history if "loss" in each]
    kept.leave(losses, model)


main()
