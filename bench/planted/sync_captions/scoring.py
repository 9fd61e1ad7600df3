"""How much of a caption is right, word by word and as a whole?"""


class Scoreboard:
    """Counts over a window of the latest batches."""

    def __init__(self, pad, end, window=50):
        self.pad, self.end, self.window = pad, end, window
        self.words, self.prefixes = [], []

    def add(self, guessed, wanted):
        right = total = prefix = 0
        for guess, want in zip(guessed, wanted, strict=True):
            unbroken = True
            for a, b in zip(guess, want, strict=True):
                if b == self.pad:  # culprit: sync
                    break
                total += 1
                if a == b:  # cost: sync
                    right += 1
                    prefix += unbroken
                else:
                    unbroken = False
                if b == self.end:
                    break
        self.words = [*self.words, right / total][-self.window :]
        self.prefixes = [*self.prefixes, prefix / total][-self.window :]

    def __str__(self):
        words = sum(self.words) / len(self.words)
        prefixes = sum(self.prefixes) / len(self.prefixes)
        return f"words {words:.3f} prefixes {prefixes:.3f}"
