"""A long text of made-up words, read in parallel from several places."""

import torch


class Letters:
    letters = 40

    def __init__(self, streams, length=200_000):
        words = torch.randint(1, self.letters, (400, 6))
        words[:, -1] = 0
        chosen = torch.randint(400, (length // 6 + 1,))
        self.text = words[chosen].flatten()
        self.places = torch.arange(streams) * (len(self.text) // streams)

    def next(self, count):
        batch = self.text[(self.places.unsqueeze(1) + torch.arange(count)) % len(self.text)]
        self.places = self.places + count - 1
        return batch
