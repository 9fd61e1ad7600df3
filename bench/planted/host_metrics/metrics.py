"""Which class is taken for which? Counted over all tokens of a batch."""


def count_confusions(predicted, target):
    counts = {}
    for seen, wanted in zip(predicted.tolist(), target.tolist(), strict=True):
        counts[wanted, seen] = counts.get((wanted, seen), 0) + 1  # culprit: host
    return counts


def accuracy(counts):
    right = sum(count for (wanted, seen), count in counts.items() if wanted == seen)
    return right / sum(counts.values())
