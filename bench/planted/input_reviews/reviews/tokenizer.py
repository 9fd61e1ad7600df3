"""Byte pairs, merged as they were learned: the textbook form of the algorithm."""

from collections import Counter
from itertools import pairwise

PAD, UNKNOWN = 0, 1


class PairTokenizer:
    """Splits words into the pieces that were most frequent in the corpus."""

    def __init__(self, texts, merges=150):
        words = Counter(word for text in texts for word in text.split())
        pieces = {word: list(word) for word in words}
        self.ranks = {}
        for rank in range(merges):
            pairs = Counter()
            for word, count in words.items():
                parts = pieces[word]
                for pair in pairwise(parts):
                    pairs[pair] += count
            if not pairs:
                break
            best = pairs.most_common(1)[0][0]
            self.ranks[best] = rank
            pieces = {word: self._merge(parts, best) for word, parts in pieces.items()}
        letters = sorted({letter for word in words for letter in word})
        vocabulary = letters + ["".join(pair) for pair in self.ranks]
        self.ids = {piece: number for number, piece in enumerate(vocabulary, 2)}

    def __len__(self):
        return len(self.ids) + 2

    @staticmethod
    def _merge(parts, pair):
        merged, at = [], 0
        while at < len(parts):
            if at + 1 < len(parts) and (parts[at], parts[at + 1]) == pair:
                merged.append(parts[at] + parts[at + 1])
                at += 2
            else:
                merged.append(parts[at])
                at += 1
        return merged

    def split(self, word):
        parts = list(word)
        while len(parts) > 1:
            pairs = pairwise(parts)
            best = min(pairs, key=lambda pair: self.ranks.get(pair, len(self.ranks)))
            if best not in self.ranks:
                break
            parts = self._merge(parts, best)
        return parts

    def encode(self, text, max_length):
        pieces = [piece for word in text.split() for piece in self.split(word)]
        ids = [self.ids.get(piece, UNKNOWN) for piece in pieces[:max_length]]
        return ids + [PAD] * (max_length - len(ids))
