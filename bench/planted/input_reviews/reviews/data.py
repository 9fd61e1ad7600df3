"""Reviews that a random shopper writes, and the loader that feeds them to the model."""

import random

import lightning as L
import torch
from torch.utils.data import DataLoader, Dataset

from reviews.tokenizer import PairTokenizer

GOOD = ["great", "lovely", "sturdy", "perfect", "cheerful", "wonderful", "recommended"]
BAD = ["broken", "awful", "flimsy", "returned", "disappointing", "useless", "scratched"]
PLAIN = ["the", "kettle", "arrived", "yesterday", "with", "packaging", "instructions", "handle"]


def write_reviews(count, seed):
    rng = random.Random(seed)
    reviews = []
    for _ in range(count):
        stars = rng.randrange(5)
        words = [
            rng.choice(GOOD if rng.random() < stars / 4 else BAD)
            if rng.random() < 0.3
            else rng.choice(PLAIN)
            for _ in range(rng.randint(40, 80))
        ]
        reviews.append((" ".join(words), stars))
    return reviews


class ReviewDataset(Dataset):
    def __init__(self, reviews, tokenizer, max_length):
        self.reviews = reviews
        self.tokenizer = tokenizer
        self.max_length = max_length

    def __len__(self):
        return len(self.reviews)

    def __getitem__(self, index):
        text, stars = self.reviews[index]
        ids = self.tokenizer.encode(text, self.max_length)  # culprit: input
        return torch.tensor(ids), stars


class ReviewData(L.LightningDataModule):
    def __init__(self, batch_size, max_length, seed):
        super().__init__()
        self.batch_size, self.max_length, self.seed = batch_size, max_length, seed
        self.reviews = write_reviews(1024, seed)
        self.tokenizer = PairTokenizer([text for text, _ in self.reviews])

    def setup(self, stage):
        self.dataset = ReviewDataset(self.reviews, self.tokenizer, self.max_length)

    def train_dataloader(self):
        order = torch.Generator().manual_seed(self.seed)
        return DataLoader(
            self.dataset, self.batch_size, shuffle=True, drop_last=True, generator=order
        )
