"""How often does the recogniser err? By the edit distance between what was said and heard."""

BLANK = 0


def edit_distance(said, heard):
    """How many digits must be changed, added or left out?"""
    row = list(range(len(heard) + 1))
    for i, a in enumerate(said, 1):
        above, row[0] = row[0], i
        for j, b in enumerate(heard, 1):
            above, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, above + (a != b))  # cost: host
    return row[-1]


def collapse(path):
    """The digits of a path: repeats count once, blanks not at all."""
    digits, last = [], BLANK
    for symbol in path:
        if symbol not in (last, BLANK):
            digits.append(symbol)
        last = symbol
    return digits


class ErrorReport:
    """The error rate of the latest batch that was looked at."""

    def __init__(self):
        self.rate = 1.0

    def add(self, step, scores, digits, counts):
        said = [part.tolist() for part in digits.split(counts.tolist())]
        heard = [collapse(path) for path in scores.argmax(-1).tolist()]
        # The frames too: how much of the path itself is right?
        paths = scores.argmax(-1).tolist()
        stretched = [[digit for digit in each for _ in range(8)] for each in said]
        wrong = sum(edit_distance(a, b) for a, b in zip(said, heard, strict=True))  # culprit: host
        wrong += sum(edit_distance(a, b[:48]) for a, b in zip(stretched, paths, strict=True)) / 8
        self.rate = wrong / max(sum(map(len, said)), 1)

    def __str__(self):
        return f"{self.rate:.3f}"
