"""Fine-tunes a small encoder to tag the entities in sentences, with a trainer of its own.

The whole development set is scored every five steps.
"""

import argparse
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

NUM_LABELS, VOCAB_SIZE, SEQ_LEN = 9, 5000, 48


@dataclass
class TrainingArguments:
    max_steps: int = 100_000
    per_device_batch_size: int = 32
    learning_rate: float = 0.05
    eval_steps: int = 5


class EncoderForTokenClassification(nn.Module):
    def __init__(self, hidden_size=96, num_layers=2):
        super().__init__()
        self.word_embeddings = nn.Embedding(VOCAB_SIZE, hidden_size)
        layer = nn.TransformerEncoderLayer(
            hidden_size, 4, 2 * hidden_size, dropout=0.0, batch_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, num_layers)
        self.classifier = nn.Linear(hidden_size, NUM_LABELS)

    def forward(self, input_ids, labels):
        logits = self.classifier(self.encoder(self.word_embeddings(input_ids)))
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten()), logits


class TaggingTrainer:
    def __init__(self, model, args, train_dataset, eval_dataset):
        self.model, self.args = model, args
        self.train_dataset, self.eval_dataset = train_dataset, eval_dataset
        self.optimizer = torch.optim.SGD(model.parameters(), lr=args.learning_rate)
        self.best_accuracy = 0.0

    def get_batches(self, dataset):
        size = self.args.per_device_batch_size
        input_ids, labels = dataset
        return list(zip(input_ids.split(size), labels.split(size), strict=True))

    def train(self):
        batches = self.get_batches(self.train_dataset)
        self.model.train()
        for step in range(self.args.max_steps):
            loss = self.training_step(*batches[step % len(batches)])
            if (step + 1) % self.args.eval_steps == 0:
                accuracy = self.evaluate()  # culprit: evaluation
                self.best_accuracy = max(self.best_accuracy, accuracy)
            print({"step": step, "loss": f"{loss:.6f}", "best": self.best_accuracy})

    def training_step(self, input_ids, labels):
        loss, _ = self.model(input_ids, labels)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    @torch.no_grad()
    def evaluate(self):
        self.model.eval()
        correct = total = 0
        for input_ids, labels in self.get_batches(self.eval_dataset):
            _, logits = self.model(input_ids, labels)  # cost: evaluation
            correct += (logits.argmax(-1) == labels).sum().item()
            total += labels.numel()
        self.model.train()
        return correct / total


def make_dataset(num_sentences):
    input_ids = torch.randint(VOCAB_SIZE, (num_sentences, SEQ_LEN))
    return input_ids, input_ids % NUM_LABELS


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    training_args = TrainingArguments(max_steps=parser.parse_args().steps)
    torch.manual_seed(0)
    torch.set_num_threads(2)
    trainer = TaggingTrainer(
        EncoderForTokenClassification(), training_args, make_dataset(1024), make_dataset(384)
    )
    trainer.train()
